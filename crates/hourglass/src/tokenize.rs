//! `hourglass tokenize`: text or a conversation to token ids, or ids back to text.
//! Not here: the tokenizer (`weights`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use weights::{Message, RenderOptions};

use crate::failure::usage;
use crate::load::ModelArgs;
use crate::{input, load::OnOff, output};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["text", "text_file", "conversation", "decode"])))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// A file that holds the text; - for stdin
    #[arg(long, value_name = "FILE")]
    text_file: Option<PathBuf>,
    /// A JSON array of messages ({"role": ..., "content": ...}), put through the model's chat template; - for stdin
    #[arg(long, value_name = "FILE.json")]
    conversation: Option<PathBuf>,
    /// Token ids to turn back into text
    #[arg(long, value_name = "IDS")]
    decode: Option<String>,
    /// Special-token text in the text is ordinary text
    #[arg(long, conflicts_with_all = ["conversation", "decode"])]
    plain: bool,
    /// Tell the template whether the model may think first [default: the template's own]
    #[arg(long, value_enum, requires = "conversation")]
    thinking: Option<OnOff>,
    /// End with the opening of the assistant's turn
    #[arg(long, requires = "conversation")]
    generation_prompt: bool,
    /// Print JSON: ids, each token's text, and the text
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Tokenized {
    schema: &'static str,
    model: String,
    ids: Vec<u32>,
    /// Each id's token as the tokenizer writes it; none where the id has no token (padding rows of the vocabulary).
    tokens: Vec<Option<String>>,
    /// What the ids decode to, special tokens included.
    text: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let messages: Option<Vec<Message>> = match &args.conversation {
        None => None,
        Some(path) => {
            let text = input::read_text("--conversation", path)?;
            Some(serde_json::from_str(&text).map_err(|error| {
                usage(format!(
                    "--conversation {}: expected a JSON array of {{\"role\": ..., \"content\": ...}}, found: {error}",
                    path.display()
                ))
            })?)
        }
    };
    let text = match (&args.text, &args.text_file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(path)) => Some(input::read_text("--text-file", path)?),
        (None, None) => None,
    };
    let listed = args.decode.as_deref().map(|list| input::parse_ids("--decode", list)).transpose()?;

    let files = args.model.open(None)?;
    let tokenizer = input::tokenizer(&files)?;
    let decoding = listed.is_some();
    let ids = if let Some(ids) = listed {
        input::check_ids("--decode", &ids, files.config())?;
        ids
    } else if let Some(messages) = messages {
        let options = RenderOptions {
            add_generation_prompt: args.generation_prompt,
            enable_thinking: args.thinking.map(OnOff::is_on),
            tools: None,
        };
        input::conversation_ids(&files, &tokenizer, &messages, &options, "give text without a template by --text")?
    } else {
        let text = text.unwrap_or_default();
        if args.plain { tokenizer.encode_plain(&text) } else { tokenizer.encode_with_special(&text) }?
    };

    if args.json {
        output::print_json(&Tokenized {
            schema: "tokenize/1",
            model: files.label().to_owned(),
            tokens: ids.iter().map(|id| tokenizer.id_to_token(*id)).collect(),
            text: tokenizer.decode(&ids, false)?,
            ids,
        })?;
    } else if decoding {
        output::print(format!("{}\n", tokenizer.decode(&ids, false)?).as_bytes())?;
    } else {
        output::print(format!("{}\n", list(&ids)).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `1,2,3`, as `--ids` takes it.
pub(crate) fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
