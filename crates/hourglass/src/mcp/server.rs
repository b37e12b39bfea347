//! The protocol's side: which tools are offered, calling one on a thread of its own, progress and cancellation.
//! Not here: what a tool does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool as Offered,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::tool::{Answer, Job, Tool, Workplace};
use super::{reading, running};

const INSTRUCTIONS: &str = "Hourglass measures where the time of a language model's request goes on this machine. Records of \
    measurements are files that never change; each has an evidence id, which every answer names: quote it for every number \
    that you pass on. Begin with list_records and find_result; explain says what a number means. A value {\"unavailable\": ...} \
    is missing, not zero, and says how to get it; a void record proves nothing. Tools named run_* measure: they take the \
    whole machine for minutes, one at a time, and are there only if this server was started with --allow-run.";

/// One session.
pub(super) struct Server {
    work: Arc<Workplace>,
    tools: Arc<Vec<Tool>>,
}

impl Server {
    pub(super) fn new(work: Arc<Workplace>) -> Server {
        let tools = Arc::new(reading::tools().into_iter().chain(running::tools()).collect());
        Server { work, tools }
    }

    fn offered(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| self.work.allow_run || !tool.runs)
    }

    /// The tools that are offered, as JSON.
    pub(super) fn described(&self) -> Value {
        self.offered().map(Tool::described).collect()
    }
}

fn offer(tool: &Tool) -> Offered {
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(!tool.runs)
        // A measurement adds records and removes nothing.
        .destructive(false)
        .idempotent(!tool.runs)
        .open_world(false);
    Offered::new(tool.name, tool.description, Arc::clone(&tool.schema))
        .with_title(tool.title)
        .with_annotations(annotations)
}

/// The answer, or why there is none: an error of the tool, whose words reach the model.
fn result(answer: anyhow::Result<Answer>) -> CallToolResult {
    match answer {
        Ok(Answer { text, structured }) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(Value::Object(structured));
            result
        }
        Err(error) => {
            let words = format!("{error:#}");
            let mut result = CallToolResult::error(vec![ContentBlock::text(words.clone())]);
            result.structured_content = Some(json!({"error": words}));
            result
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("hourglass", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params(
                "cursor: the list of tools has one page; leave the cursor out",
                None,
            ));
        }
        Ok(ListToolsResult::with_all_items(self.offered().map(offer).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(index) = self.tools.iter().position(|tool| tool.name == request.name) else {
            let shown: String = request.name.chars().take(80).collect();
            let names: Vec<_> = self.offered().map(|tool| tool.name).collect();
            return Err(ErrorData::invalid_params(format!("no tool '{shown}'; there are {}", names.join(", ")), None));
        };
        let tool = &self.tools[index];
        if tool.runs && !self.work.allow_run {
            let words = format!(
                "{} measures, and this server only reads; start it as `hourglass mcp --allow-run` to allow that",
                tool.name
            );
            return Ok(result(Err(anyhow::Error::msg(words))).into());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, mut receiver) = unbounded_channel();
        let job = Job::new(&self.work, Arc::clone(&stop), sender);
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let (work, tools, busy) = (Arc::clone(&self.work), Arc::clone(&self.tools), self.work.busy());
        let mut answer = tokio::task::spawn_blocking(move || {
            let _busy = busy;
            (tools[index].call)(&work, arguments, &job)
        });
        let token = context.meta.get_progress_token();
        let mut cancelled = false;
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                () = context.ct.cancelled(), if !cancelled => {
                    cancelled = true;
                    stop.store(true, SeqCst);
                }
                Some(progress) = receiver.recv() => if let (Some(token), false) = (&token, cancelled) {
                    let note = ProgressNotificationParam::new(token.clone(), progress.elapsed.as_secs_f64().floor())
                        .with_total(progress.limit.as_secs_f64())
                        .with_message(progress.words);
                    // Progress that cannot be told is no reason to stop.
                    let _ = context.peer.notify_progress(note).await;
                },
            }
        };
        // A panic is a defect of the tool; the session goes on.
        let answer = answer
            .unwrap_or_else(|error| Err(anyhow::anyhow!("the tool failed: {error}; this is a defect of hourglass")));
        Ok(result(answer).into())
    }
}
