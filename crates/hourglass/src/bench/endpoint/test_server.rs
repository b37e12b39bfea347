//! Test help: a scripted HTTP server on this machine. Compiled for tests only.
//! Not here: any check.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// One step of an answer.
#[derive(Clone)]
pub(super) enum Step {
    Send(String),
    Wait(Duration),
    /// The step before it again and again, until the client hangs up.
    Forever(String, Duration),
}

/// Path and body in, steps out; then the connection closes.
type Script = dyn Fn(&str, &Value) -> Vec<Step> + Send + Sync;

pub(super) struct TestServer {
    pub(super) url: String,
    /// Path and body of each request.
    pub(super) requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl TestServer {
    /// Runs until the process ends; each connection serves one request.
    pub(super) fn start(script: impl Fn(&str, &Value) -> Vec<Step> + Send + Sync + 'static) -> TestServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let (script, log): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                std::thread::spawn(move || serve(&stream.unwrap(), script.as_ref(), &log));
            }
        });
        TestServer { url, requests }
    }
}

fn serve(mut stream: &TcpStream, script: &Script, log: &Mutex<Vec<(String, Value)>>) {
    let mut reader = BufReader::new(stream);
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        } else if path.is_empty() {
            path = line.split(' ').nth(1).unwrap().to_owned();
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body).unwrap();
    let body = serde_json::from_str(&body).unwrap_or_default();
    log.lock().unwrap().push((path.clone(), body));
    let body = log.lock().unwrap().last().unwrap().1.clone();
    for step in script(&path, &body) {
        // A client that hung up has seen enough.
        let gone = match step {
            Step::Send(text) => stream.write_all(text.as_bytes()).is_err(),
            Step::Wait(time) => {
                std::thread::sleep(time);
                false
            }
            Step::Forever(text, pause) => loop {
                if stream.write_all(text.as_bytes()).is_err() {
                    break true;
                }
                std::thread::sleep(pause);
            },
        };
        if gone {
            return;
        }
    }
}

/// The head of a stream that ends with the connection.
pub(super) fn stream_head() -> String {
    "HTTP/1.1 200 OK\r\nserver: scripted/1\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".into()
}

pub(super) fn plain(status: &str, kind: &str, body: &str) -> Vec<Step> {
    let head = format!("HTTP/1.1 {status}\r\nserver: scripted/1\r\ncontent-type: {kind}\r\nconnection: close\r\n");
    vec![Step::Send(format!("{head}content-length: {}\r\n\r\n{body}", body.len()))]
}

/// One event of the completions API.
pub(super) fn event(text: &str) -> String {
    format!("data: {}\n\n", serde_json::json!({"choices": [{"index": 0, "text": text}]}))
}

/// The end of an answer: why it ended, then its counts.
pub(super) fn ending(prompt: u64, completion: u64) -> String {
    let finish = serde_json::json!({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]});
    let usage = serde_json::json!({"choices": [], "usage": {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion
    }});
    format!("data: {finish}\n\ndata: {usage}\n\ndata: [DONE]\n\n")
}

/// How many ids the request's prompt has; 0 for text.
pub(super) fn id_count(body: &Value) -> u64 {
    body["prompt"].as_array().map_or(0, |ids| ids.len() as u64)
}
