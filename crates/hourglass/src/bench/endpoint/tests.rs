//! Tests of the endpoint client against scripted servers: good ones of several dialects, and hostile ones.
//! Not here: real servers (docs/peers.md says how to try one).
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use record::bench::{ChildLine, ChildRequest};
use serde_json::{Value, json};

use super::dialect::{Place, Prompt};
use super::test_server::{Step, TestServer, ending, event, id_count, plain, stream_head};
use super::*;

const IDS: [u32; 8] = [40, 41, 42, 43, 44, 45, 46, 47];

fn request(url: &str) -> EndpointRequest<'_> {
    EndpointRequest { url, ids: &IDS, text: None, output_len: 4, warmup: 2, limit: Duration::from_secs(20) }
}

fn lines(request: &EndpointRequest) -> Result<Vec<ChildLine>> {
    let mut out = Vec::new();
    child(request, &mut out)?;
    let text = String::from_utf8(out).unwrap();
    Ok(text.lines().map(|line| ChildLine::parse(line).unwrap()).collect())
}

/// Header and request of a server that answers well.
fn good(request: &EndpointRequest) -> (Box<ChildHeader>, Box<ChildRequest>) {
    let Ok([ChildLine::Header(header), ChildLine::Request(measured)]) =
        <[ChildLine; 2]>::try_from(lines(request).unwrap())
    else {
        panic!("expected a header and a request");
    };
    measured.check(request.output_len as u64).unwrap();
    (header, measured)
}

fn models() -> Vec<Step> {
    plain("200 OK", "application/json", r#"{"data": [{"id": "the-model"}]}"#)
}

/// A server that answers `completions` with these texts, each written by itself and far apart; one for the probe.
fn answers(texts: &'static [&'static str], completion: u64) -> TestServer {
    TestServer::start(move |path, body| {
        if path == "/v1/models" {
            return models();
        }
        let probe = body["max_tokens"] == 1;
        let mut steps = vec![Step::Send(stream_head())];
        for text in if probe { &["x"][..] } else { texts } {
            steps.push(Step::Wait(Duration::from_millis(20)));
            steps.push(Step::Send(event(text)));
        }
        steps.push(Step::Wait(Duration::from_millis(20)));
        steps.push(Step::Send(ending(id_count(body), if probe { 1 } else { completion })));
        steps
    })
}

/// What a whole run against a hostile stream says.
fn complaint_about(limit: Duration, steps: impl Fn() -> Vec<Step> + Send + Sync + 'static) -> String {
    let server = TestServer::start(move |path, _| if path == "/v1/models" { models() } else { steps() });
    let error = lines(&EndpointRequest { limit, ..request(&server.url) }).unwrap_err().to_string();
    assert!(error.contains(&server.url), "{error}");
    error
}

fn streamed(text: impl Into<String>) -> impl Fn() -> Vec<Step> + Send + Sync {
    let text = text.into();
    move || vec![Step::Send(stream_head()), Step::Send(text.clone())]
}

#[test]
fn a_server_that_takes_ids_is_sent_ids_and_never_the_same_prompt_before_the_clock() {
    let server = answers(&["a", "b", "c", "d"], 4);
    let (header, measured) = good(&request(&server.url));
    assert_eq!(header.version, "scripted/1");
    assert_eq!(header.settings["model"], Setting::Text("the-model".into()));
    assert_eq!(header.settings["prompt"], Setting::Text("token ids".into()));
    let times = measured.endpoint.unwrap();
    assert_eq!(times.prompt_tokens, Known::Is(8));
    assert_eq!(times.completion_tokens, Known::Is(4));
    // echo -n abcd | sha256sum
    assert_eq!(times.text_hash, "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589");
    assert_eq!(times.chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);
    assert!(*times.client_overhead_s.known().unwrap() > 0.0);
    // Each event was written 20 ms after the one before: no client reads them nearer together than they were sent, and
    // where a slow one read two at once it must not invent a gap.
    if let Known::Is(token_s) = &measured.token_s {
        assert!(token_s.iter().all(|gap| *gap > 0.0), "{token_s:?}");
    } else {
        assert!(times.chunk_s.len() < 4);
    }
    assert!(measured.prefill_s.known().is_none() && measured.peak_rss_bytes.known().is_none());

    let requests = server.requests.lock().unwrap();
    let prompts: Vec<&Value> =
        requests.iter().filter(|(path, _)| path != "/v1/models").map(|(_, b)| &b["prompt"]).collect();
    assert_eq!(prompts.len(), 4, "probe, two warm-ups, measured");
    assert_eq!(*prompts[3], json!(IDS));
    for earlier in &prompts[..3] {
        assert_ne!(earlier[0], prompts[3][0], "an earlier prompt begins like the measured one");
    }
    assert_eq!(prompts[1].as_array().unwrap().len(), IDS.len());
    let measured = &requests.last().unwrap().1;
    assert_eq!((&measured["temperature"], &measured["max_tokens"]), (&json!(0), &json!(4)));
    assert_eq!((&measured["ignore_eos"], &measured["cache_prompt"]), (&json!(true), &json!(false)));
}

#[test]
fn a_strict_server_of_text_is_asked_plainly() {
    let server = TestServer::start(|path, body| {
        if path == "/v1/models" {
            return plain("404 Not Found", "text/plain", "no");
        }
        if !body["prompt"].is_string() || body.get("ignore_eos").is_some() {
            return plain("422 Unprocessable", "application/json", r#"{"detail": "what is this?"}"#);
        }
        let count = body["max_tokens"].as_u64().unwrap();
        let events: String = (0..count).map(|_| event("w")).collect();
        vec![Step::Send(stream_head()), Step::Send(events + &ending(9, count))]
    });
    let (header, measured) = good(&request(&server.url));
    let Setting::Text(prompt) = &header.settings["prompt"] else { panic!("{header:?}") };
    assert!(prompt.contains("another prompt"), "{prompt}");
    // Everything came in one write: one chunk of four tokens, and no times between them.
    let times = measured.endpoint.unwrap();
    assert_eq!(times.prompt_tokens, Known::Is(9));
    assert_eq!(times.chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);
    assert!(times.chunk_s.len() < 4 && measured.token_s.known().is_none());

    let (header, _) = good(&EndpointRequest { text: Some("hello there"), ..request(&server.url) });
    assert_eq!(header.settings["prompt"], Setting::Text("the text of the token ids".into()));
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.last().unwrap().1["prompt"], "hello there");
}

#[test]
fn a_chat_server_is_found_behind_the_other_addresses() {
    let server = TestServer::start(|path, body| {
        if path != "/v1/chat/completions" {
            return plain("404 Not Found", "application/json", r#"{"error": {"message": "no such path"}}"#);
        }
        assert_eq!(body["messages"][0]["role"], "user");
        let delta = |delta: Value| format!("data: {}\n\n", json!({"choices": [{"delta": delta}]}));
        let count = body["max_tokens"].as_u64().unwrap();
        let mut text = delta(json!({"role": "assistant"})) + &delta(json!({"content": ""}));
        text += ": still here\n\nevent: message\n";
        for _ in 0..count {
            text += &delta(json!({"content": "y"}));
        }
        vec![Step::Send(stream_head()), Step::Send(text + &ending(20, count))]
    });
    let (header, measured) = good(&request(&format!("{}/v1/", server.url)));
    assert_eq!(header.settings["url"], Setting::Text(format!("{}/v1/chat/completions", server.url)));
    let times = measured.endpoint.unwrap();
    // The role and the empty content are no tokens.
    assert_eq!(times.chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);
}

#[test]
fn token_ids_and_running_counts_tell_what_a_merged_event_held() {
    let merged = |extra: fn(u64, u64) -> Value| {
        TestServer::start(move |path, body| {
            if path == "/v1/models" {
                return models();
            }
            let count = body["max_tokens"].as_u64().unwrap();
            let mut steps = vec![Step::Send(stream_head())];
            // Two tokens to an event.
            for first in (0..count).step_by(2) {
                let held = (count - first).min(2);
                steps.push(Step::Send(format!("data: {}\n\n", extra(first, held))));
                steps.push(Step::Wait(Duration::from_millis(20)));
            }
            steps.push(Step::Send(ending(id_count(body), count)));
            steps
        })
    };
    let with_ids = merged(
        |first, held| json!({"choices": [{"text": "mm", "token_ids": (first..first + held).collect::<Vec<_>>()}]}),
    );
    let (_, measured) = good(&request(&with_ids.url));
    assert_eq!(measured.tokens, Known::Is(vec![0, 1, 2, 3]));
    assert_eq!(measured.endpoint.unwrap().chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);
    assert!(measured.token_s.known().is_none());

    let with_counts = merged(
        |first, held| json!({"choices": [{"text": "mm"}], "usage": {"prompt_tokens": 8, "completion_tokens": first + held}}),
    );
    let (_, measured) = good(&request(&with_counts.url));
    assert_eq!(measured.endpoint.unwrap().chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);

    let silent = merged(|_, _| json!({"choices": [{"text": "mm"}]}));
    let (_, measured) = good(&request(&silent.url));
    let times = measured.endpoint.unwrap();
    assert!(times.chunk_tokens.missing().unwrap().unavailable.contains("2 events held 4 tokens"), "{times:?}");
    assert!(measured.token_s.known().is_none());
    assert!(times.chunk_s.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", times.chunk_s);
}

#[test]
fn fewer_tokens_than_asked_for_is_no_sample() {
    let server = answers(&["a", "b"], 2);
    let error = lines(&request(&server.url)).unwrap_err().to_string();
    assert!(error.contains("2 tokens came where 4 were asked for") && error.contains("ignore_eos"), "{error}");
}

#[test]
fn without_a_count_the_reason_for_the_end_tells_it() {
    let server = |finish: &'static str| {
        TestServer::start(move |path, body| {
            if path == "/v1/models" {
                return models();
            }
            let events: String = (0..body["max_tokens"].as_u64().unwrap()).map(|_| event("w")).collect();
            let end = json!({"choices": [{"text": "", "finish_reason": finish}]});
            vec![Step::Send(stream_head()), Step::Send(format!("{events}data: {end}\n\n"))]
        })
    };
    let (_, measured) = good(&request(&server("length").url));
    let times = measured.endpoint.unwrap();
    assert_eq!(times.chunk_tokens.known().unwrap().iter().sum::<u64>(), 4);
    assert!(times.completion_tokens.known().is_none() && times.prompt_tokens.known().is_none());
    let error = lines(&request(&server("stop").url)).unwrap_err().to_string();
    assert!(error.contains("ended by itself ('stop'") && error.contains("'usage'"), "{error}");
}

#[test]
fn no_server_is_unavailable_and_a_refusal_is_told() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut out = Vec::new();
    let code = child(&request(&format!("http://127.0.0.1:{port}")), &mut out).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(3)));
    let line = ChildLine::parse(String::from_utf8(out).unwrap().trim()).unwrap();
    let ChildLine::Unavailable(reason) = line else { panic!("{line:?}") };
    assert!(reason.why.contains("no connection"), "{reason:?}");

    for (status, words) in [("401 Unauthorized", "the key"), ("429 Too Many Requests", "later"), ("500 Oops", "broken")]
    {
        let server = TestServer::start(move |path, _| {
            if path == "/v1/models" {
                return models();
            }
            plain(status, "application/json", &json!({"error": {"message": words}}).to_string())
        });
        let error = lines(&request(&server.url)).unwrap_err().to_string();
        assert!(error.contains(&status[..3]) && error.contains(words), "{error}");
    }
}

#[test]
fn addresses() {
    let place = |url| Place::parse(url);
    assert_eq!(place("http://h:1").unwrap(), place("http://h:1/v1/").unwrap());
    assert_ne!(place("http://h:1").unwrap(), place("http://h:1/v1/completions").unwrap());
    for bad in ["", "h:1", "ftp://h", "http://", "http:///v1", "http://h?x=1", "http://user@h", "http://a b"] {
        assert!(place(bad).is_err(), "{bad}");
    }
    let error = lines(&request("ftp://h")).unwrap_err().to_string();
    assert!(error.contains("endpoint:ftp://h") && error.contains("http://HOST:PORT"), "{error}");
}

#[test]
fn warm_up_prompts_begin_otherwise() {
    let first = |prompt: &Prompt, ids: bool| {
        let api = if ids { dialect::Api::Completions } else { dialect::Api::Chat };
        let dialect = Dialect { url: String::new(), api, takes_ids: ids, extras: false, model: None, server: None };
        let body = dialect.body(prompt, 1);
        if ids { body["prompt"][0].to_string() } else { body["messages"][0]["content"].to_string()[..6].to_owned() }
    };
    for ids in [&[7, 7, 7, 9][..], &[1, 2], &IDS] {
        for number in 0..3 {
            for (text, as_ids) in [(None, true), (None, false), (Some("same old text"), false)] {
                let (measured, other) = (Prompt::new(ids, text), Prompt::other_than(ids, text, number));
                assert_ne!(first(&measured, as_ids), first(&other, as_ids), "{ids:?} {number} {text:?}");
            }
        }
    }
}

#[test]
fn hostile_streams_end_with_a_reason() {
    let long = Duration::from_secs(20);
    let says = |error: String, words: &[&str]| {
        for word in words {
            assert!(error.contains(word), "expected '{word}' in: {error}");
        }
    };
    says(complaint_about(long, streamed("\u{1}\u{2} garbage\n")), &["not of OpenAI's form", "garbage"]);
    says(complaint_about(long, streamed("data: {\"choices\": [\n")), &["not of OpenAI's form"]);
    says(complaint_about(long, streamed("data: {\"x\": 1}\n")), &["neither 'choices' nor 'usage'"]);
    says(complaint_about(long, streamed("data: [1, 2]\n")), &["neither 'choices' nor 'usage'"]);
    says(complaint_about(long, streamed("data: {\"error\": {\"message\": \"out of memory\"}}\n")), &["out of memory"]);
    says(complaint_about(long, streamed(event("a"))), &["ended before its answer was complete", "after 1 chunks"]);
    says(complaint_about(long, streamed("data: {\"choi")), &["in the middle of a line"]);
    says(complaint_about(long, streamed("")), &["ended before its answer was complete"]);
    says(complaint_about(long, Vec::new), &["broke after 0 bytes"]);
    says(complaint_about(long, || vec![Step::Send("SSH-2.0-OpenSSH_9.7\r\n\r\n".into())]), &["broke after 0 bytes"]);
    says(complaint_about(long, || plain("200 OK", "application/json", "{}")), &["application/json", "does not stream"]);
    let forever = |text: String| move || vec![Step::Send(stream_head()), Step::Forever(text.clone(), Duration::ZERO)];
    says(complaint_about(long, forever(event("more"))), &["does not end"]);
    says(complaint_about(long, forever(": hm\n".repeat(4096))), &["does not end", "bytes came"]);
    says(complaint_about(long, forever("x".repeat(4096))), &["longer than"]);
}

#[test]
fn a_server_that_dribbles_or_says_nothing_meets_the_time_limit() {
    let limit = Duration::from_millis(300);
    let loris = || vec![Step::Send(stream_head()), Step::Forever(":".into(), Duration::from_millis(10))];
    let error = complaint_about(limit, loris);
    assert!(error.contains("not finished after 0.3 s"), "{error}");
    let error = complaint_about(limit, || vec![Step::Wait(Duration::from_secs(3))]);
    assert!(error.contains("not finished after 0.3 s"), "{error}");
}

#[test]
fn a_measured_answer_without_text_is_no_sample() {
    let server = answers(&[], 4);
    let error = lines(&request(&server.url)).unwrap_err().to_string();
    assert!(error.contains("holds no text"), "{error}");
}
