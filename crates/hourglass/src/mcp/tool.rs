//! What a tool is: a name, typed arguments, and a function that answers or refuses; and what all of them work on.
//! Not here: any tool, and the protocol.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::place::Place;
use crate::failure::usage;

/// The longest text of an answer, in bytes.
const MAX_TEXT: usize = 32 << 10;

/// What the tools work on.
pub(super) struct Workplace {
    pub(super) place: Place,
    pub(super) allow_run: bool,
    /// The longest that a measurement may take.
    pub(super) limit: Duration,
    /// What is being measured.
    measuring: Mutex<Option<String>>,
    closed: Arc<AtomicBool>,
    busy: AtomicUsize,
}

impl Workplace {
    pub(super) fn new(place: Place, allow_run: bool, limit: Duration) -> Workplace {
        let closed = Arc::default();
        Workplace { place, allow_run, limit, measuring: Mutex::new(None), closed, busy: AtomicUsize::new(0) }
    }

    /// Nobody waits for answers any more.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(SeqCst) > 0
    }

    /// Counts a call until the value is dropped.
    pub(super) fn busy(self: &Arc<Workplace>) -> Busy {
        self.busy.fetch_add(1, SeqCst);
        Busy(Arc::clone(self))
    }

    /// The machine, for one measurement.
    ///
    /// # Errors
    /// Another one has it.
    pub(super) fn measure(&self, what: &str) -> Result<Measuring<'_>> {
        let mut measuring = self.measuring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = measuring.as_ref() {
            return Err(usage(format!(
                "{other} is being measured, and two measurements at once would disturb each other; wait for it, or cancel it"
            )));
        }
        *measuring = Some(what.to_owned());
        Ok(Measuring(self))
    }
}

pub(super) struct Busy(Arc<Workplace>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

pub(super) struct Measuring<'a>(&'a Workplace);

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        *self.0.measuring.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// One call: whether it is still wanted, and where it says how far it is.
pub(super) struct Job {
    stop: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    progress: UnboundedSender<Progress>,
}

/// How far a call is.
pub(super) struct Progress {
    pub(super) elapsed: Duration,
    pub(super) limit: Duration,
    pub(super) words: String,
}

impl Job {
    pub(super) fn new(work: &Workplace, stop: Arc<AtomicBool>, progress: UnboundedSender<Progress>) -> Job {
        Job { stop, closed: Arc::clone(&work.closed), progress }
    }

    /// Cancelled, or nobody is there any more.
    pub(super) fn is_unwanted(&self) -> bool {
        self.stop.load(SeqCst) || self.closed.load(SeqCst)
    }

    pub(super) fn tell(&self, progress: Progress) {
        // The receiver is gone when the call is cancelled.
        let _ = self.progress.send(progress);
    }
}

/// What a tool says: to a person or a model in words, to a program as an object.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) structured: Map<String, Value>,
}

impl Answer {
    /// `structured` is an object; the text is cut where it is too long.
    pub(super) fn new(text: String, structured: Value) -> Answer {
        let structured = match structured {
            Value::Object(fields) => fields,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        Answer { text: bounded(text), structured }
    }
}

fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let left = text.len() - end;
        text.truncate(end);
        text += &format!("\n... {left} bytes more; the structured content has it in pages\n");
    }
    text
}

type Call = Box<dyn Fn(&Workplace, Value, &Job) -> Result<Answer> + Send + Sync>;

/// One tool.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) schema: Arc<JsonObject>,
    /// It measures: it takes the machine and writes records.
    pub(super) runs: bool,
    pub(super) call: Call,
}

impl Tool {
    /// A tool whose arguments are an `A`.
    pub(super) fn new<A: DeserializeOwned + JsonSchema + 'static>(
        [name, title, description]: [&'static str; 3],
        runs: bool,
        call: fn(&Workplace, A, &Job) -> Result<Answer>,
    ) -> Tool {
        let schema = schema_for_input::<A>().expect("arguments are structs, whose schemas are objects");
        let call = move |work: &Workplace, arguments: Value, job: &Job| {
            let arguments = serde_json::from_value(arguments)
                .map_err(|why| usage(format!("arguments of {name}: {why}; its inputSchema says what it takes")))?;
            call(work, arguments, job)
        };
        Tool { name, title, description, schema, runs, call: Box::new(call) }
    }

    /// As `hourglass mcp --json` lists it.
    pub(super) fn described(&self) -> Value {
        json!({"name": self.name, "title": self.title, "description": self.description, "runs": self.runs,
            "inputSchema": *self.schema})
    }
}
