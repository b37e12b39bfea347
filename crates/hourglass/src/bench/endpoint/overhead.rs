//! What the client itself adds to a time to first token: the same request to a server in this process that answers at once.
//! Not here: the network to a server elsewhere.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use record::Known;
use serde_json::json;

use super::arrival::Client;
use super::stream;

/// Requests; the first opens the connection and is not counted.
const REQUESTS: usize = 21;

const ANSWER: &str =
    "data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";

/// The median time from sending to the first chunk's arrival, in seconds: an upper bound, since the server's thread is in it.
pub(super) fn measure() -> Known<f64> {
    sample().unwrap_or_else(|why| {
        Known::unavailable(
            format!("no server could be run in this process: {why}"),
            "a machine with a loopback network",
        )
    })
}

fn sample() -> io::Result<Known<f64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/v1/completions", listener.local_addr()?);
    let server = std::thread::Builder::new().name("null server".into());
    // One connection: it ends when the client below is dropped.
    let server = server.spawn(move || listener.accept().and_then(|(stream, _)| serve(&stream)))?;
    let client = Client::new(Duration::from_secs(2));
    let body = json!({"prompt": [1], "max_tokens": 1, "stream": true});
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let answer = stream::read(&client, &url, &body, Instant::now(), 1).map_err(io::Error::other)?;
        times.extend(answer.chunks.first().map(|chunk| chunk.at.as_secs_f64()));
    }
    drop(client);
    server.join().map_err(|_| io::Error::other("its thread panicked"))??;
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(Known::Is(times[times.len() / 2]))
}

/// Answers every request of a connection until it closes.
fn serve(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
        let mut out: &TcpStream = stream;
        out.write_all(format!("{head}: {}\r\n\r\n{ANSWER}", ANSWER.len()).as_bytes())?;
    }
}
