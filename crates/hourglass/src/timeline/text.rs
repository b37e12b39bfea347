//! The text side of a traced request, where the model has a tokenizer: template and tokenizer before it, tokens to text in it.
//! Not here: which tokens run; those of the prompt's rule do, so that the work is the same for every model of these shapes.

use weights::{ChatTemplate, Message, ModelFiles, RenderOptions, Tokenizer};

use crate::input;

/// What the main thread needs to work on text.
pub(super) struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// The prompt's tokens as a user's message.
    message: Message,
}

impl Text {
    /// `None` for a model without a tokenizer, as synthetic ones are.
    pub(super) fn of(files: &ModelFiles, prompt: &[u32]) -> Option<Text> {
        let tokenizer = files.tokenizer().ok()?;
        let words = tokenizer.decode(prompt, true).ok()?;
        let template = files.chat_template().ok().flatten();
        Some(Text { tokenizer, template, message: input::message("user", &words) })
    }

    /// What a request begins with: the template if there is one, and the tokenizer.
    pub(super) fn input(&self) -> impl FnMut() {
        move || {
            let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
            let ids = match &self.template {
                Some(template) => {
                    self.tokenizer.encode_conversation(template, std::slice::from_ref(&self.message), &options)
                }
                None => self.tokenizer.encode_with_special(&self.message.content),
            };
            // Only the time is wanted; a template that refuses the message takes less of it.
            std::hint::black_box(ids.ok());
        }
    }

    /// What follows each token.
    pub(super) fn output(&self) -> impl FnMut(u32) {
        let mut stream = self.tokenizer.stream();
        move |token| {
            std::hint::black_box(stream.push(token).ok());
        }
    }
}
