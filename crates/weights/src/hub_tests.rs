//! The hub against a small HTTP server on this machine that can break, lie and ignore ranges.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::scratch_model::ScratchModel;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO: &str = "someone/Model-1";

/// What the server does wrong, and what it was asked.
#[derive(Default)]
struct Behaviour {
    /// Ends the next answer with content after so many bytes.
    cut_after: Mutex<Option<usize>>,
    ignore_range: AtomicBool,
    corrupt: AtomicBool,
    failing: Mutex<u32>,
    /// `METHOD path range`.
    log: Mutex<Vec<String>>,
}

struct Server {
    address: String,
    behaviour: Arc<Behaviour>,
}

impl Server {
    fn start(files: BTreeMap<String, Vec<u8>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let behaviour = Arc::new(Behaviour::default());
        let shared = behaviour.clone();
        // Ends with the test process; each test has its own.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away in the middle is part of the tests.
                drop(answer(stream, &files, &shared));
            }
        });
        Server { address, behaviour }
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.behaviour.log.lock().unwrap())
    }
}

fn answer(mut stream: TcpStream, files: &BTreeMap<String, Vec<u8>>, behaviour: &Behaviour) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut range = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("range: bytes=") {
            range = value.trim_end_matches('-').parse::<usize>().ok();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    behaviour.log.lock().unwrap().push(match range {
        Some(range) => format!("{method} {path} {range}"),
        None => format!("{method} {path}"),
    });
    let end = "Connection: close\r\n\r\n";
    {
        let mut failing = behaviour.failing.lock().unwrap();
        if *failing > 0 {
            *failing -= 1;
            return write!(stream, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n{end}");
        }
    }
    if path == format!("/api/models/{REPO}/revision/main") {
        let siblings: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{end}{body}", body.len());
    }
    let hub = format!("/{REPO}/resolve/{COMMIT}/");
    let (name, storage) = match (path.strip_prefix(&hub), path.strip_prefix("/storage/")) {
        (Some(name), _) => (name, false),
        (_, Some(name)) => (name, true),
        _ => ("", false),
    };
    let Some(content) = files.get(name) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{end}");
    };
    let large = name.ends_with(".safetensors");
    if large && !storage {
        // As the hub does: hash and size here, the bytes elsewhere.
        let hash = crate::hex(&Sha256::digest(content));
        return write!(
            stream,
            "HTTP/1.1 302 Found\r\nX-Linked-Etag: \"{hash}\"\r\nX-Linked-Size: {}\r\nLocation: /storage/{name}\r\n\
             Content-Length: 0\r\n{end}",
            content.len()
        );
    }
    let mut content = content.clone();
    if large && behaviour.corrupt.load(Ordering::Relaxed) {
        content[20] ^= 1;
    }
    let start = if behaviour.ignore_range.load(Ordering::Relaxed) { 0 } else { range.unwrap_or(0) };
    let status = if start > 0 {
        format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{}", content.len() - 1, content.len())
    } else {
        "200 OK".into()
    };
    // A small file's tag is git's hash of it: 40 digits, which say nothing about SHA-256.
    let tag = &crate::hex(&Sha256::digest(name))[..40];
    let body = &content[start..];
    write!(stream, "HTTP/1.1 {status}\r\nETag: \"{tag}\"\r\nContent-Length: {}\r\n{end}", body.len())?;
    if method == "GET" {
        let cut = if large { behaviour.cut_after.lock().unwrap().take() } else { None };
        stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])?;
    }
    Ok(())
}

struct Scene {
    server: Server,
    hub: Hub,
    weights: Vec<u8>,
    _directory: tempfile::TempDir,
}

fn scene() -> Scene {
    let model = ScratchModel::dense("qwen3", "BF16", true);
    let weights = model.container(|_| true);
    let mut files = BTreeMap::new();
    files.insert("config.json".to_string(), model.config.to_string().into_bytes());
    files.insert("tokenizer.json".into(), b"{}".to_vec());
    files.insert("model.safetensors".into(), weights.clone());
    files.insert("README.md".into(), b"not needed".to_vec());
    files.insert("original/model.safetensors".into(), b"not needed".to_vec());
    files.insert("pytorch_model.bin".into(), b"not needed".to_vec());
    let server = Server::start(files);
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::new(&server.address, Some("secret".into()));
    client.backoff = Duration::from_millis(1);
    let hub = Hub { cache: directory.path().join("hub"), client };
    Scene { server, hub, weights, _directory: directory }
}

impl Scene {
    fn partial(&self) -> PathBuf {
        let hash = crate::hex(&Sha256::digest(&self.weights));
        self.hub.folder(REPO).unwrap().join("blobs").join(format!("{hash}.incomplete"))
    }

    fn pull(&self) -> Result<PathBuf> {
        self.hub.locate(REPO, &OpenOptions::default())
    }
}

const OFFLINE: OpenOptions<'static> = OpenOptions { offline: true, progress: None, cancelled: None };

#[test]
fn a_full_download_opens_and_is_then_found_without_the_network() {
    let scene = scene();
    let error = scene.hub.locate(REPO, &OFFLINE).unwrap_err().to_string();
    assert!(error.contains(REPO) && error.contains("hub") && error.contains("--offline"), "{error}");
    assert!(scene.server.log().is_empty(), "offline must not ask");

    let seen = Mutex::new(BTreeMap::new());
    let progress = |done: u64, total: Option<u64>, name: &str| {
        seen.lock().unwrap().insert(name.to_string(), (done, total));
    };
    let options = OpenOptions { progress: Some(&progress), ..Default::default() };
    let snapshot = scene.hub.locate(REPO, &options).unwrap();
    let size = scene.weights.len() as u64;
    assert_eq!(seen.lock().unwrap()["model.safetensors"], (size, Some(size)));
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), scene.weights);
    assert!(fs::symlink_metadata(snapshot.join("config.json")).unwrap().is_symlink());
    let mut names: Vec<_> = fs::read_dir(&snapshot).unwrap().map(|f| f.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert!(!scene.partial().exists());
    crate::open(&crate::ModelSource::Directory(snapshot.clone()), &OFFLINE).unwrap();

    scene.server.log();
    assert_eq!(scene.hub.locate(REPO, &OFFLINE).unwrap(), snapshot);
    assert_eq!(scene.pull().unwrap(), snapshot);
    assert!(scene.server.log().is_empty(), "what is cached needs no server");
    // Asking for the newest fetches nothing that is there.
    scene.hub.pull(REPO, &OpenOptions::default()).unwrap();
    assert!(scene.server.log().iter().all(|line| !line.starts_with("GET /storage") && !line.contains("GET /someone")));
}

#[test]
fn a_broken_connection_resumes_by_itself() {
    let scene = scene();
    *scene.server.behaviour.cut_after.lock().unwrap() = Some(10_000);
    let snapshot = scene.pull().unwrap();
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), scene.weights);
    let log = scene.server.log();
    assert!(log.contains(&"GET /storage/model.safetensors 10000".to_string()), "{log:?}");
}

#[test]
fn a_cancelled_download_is_kept_and_resumed_and_never_taken_for_whole() {
    let scene = scene();
    let stop = AtomicBool::new(false);
    let progress = |_: u64, _: Option<u64>, name: &str| {
        if name == "model.safetensors" {
            stop.store(true, Ordering::Relaxed);
        }
    };
    *scene.server.behaviour.cut_after.lock().unwrap() = Some(20_000);
    let options = OpenOptions { progress: Some(&progress), cancelled: Some(&stop), offline: false };
    let error = scene.hub.locate(REPO, &options).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    let kept = fs::metadata(scene.partial()).unwrap().len();
    assert!(kept > 0 && kept < scene.weights.len() as u64, "{kept}");
    let error = scene.hub.locate(REPO, &OFFLINE).unwrap_err();
    assert!(matches!(error, Error::Offline { .. }), "{error}");

    scene.server.log();
    let snapshot = scene.pull().unwrap();
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), scene.weights);
    let log = scene.server.log();
    assert!(log.contains(&format!("GET /storage/model.safetensors {kept}")), "{log:?}");
}

#[test]
fn a_server_that_ignores_the_range_is_read_from_the_beginning() {
    let scene = scene();
    scene.server.behaviour.ignore_range.store(true, Ordering::Relaxed);
    *scene.server.behaviour.cut_after.lock().unwrap() = Some(10_000);
    let snapshot = scene.pull().unwrap();
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), scene.weights);
}

#[test]
fn wrong_content_is_refused_and_not_resumed_from() {
    let scene = scene();
    scene.server.behaviour.corrupt.store(true, Ordering::Relaxed);
    let error = scene.pull().unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(scene.hub.locate(REPO, &OFFLINE).is_err());
    scene.server.behaviour.corrupt.store(false, Ordering::Relaxed);
    let snapshot = scene.pull().unwrap();
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), scene.weights);
}

#[test]
fn wrong_bytes_left_by_an_earlier_download_are_found() {
    let scene = scene();
    fs::create_dir_all(scene.partial().parent().unwrap()).unwrap();
    fs::write(scene.partial(), vec![7; 5000]).unwrap();
    assert!(matches!(scene.pull(), Err(Error::Corrupt { .. })));
    assert_eq!(fs::metadata(scene.partial()).unwrap().len(), 0);
    fs::write(scene.partial(), vec![7; scene.weights.len() + 1]).unwrap();
    scene.pull().unwrap();
}

#[test]
fn a_busy_server_is_asked_again_and_a_dead_one_is_given_up() {
    let scene = scene();
    *scene.server.behaviour.failing.lock().unwrap() = 3;
    scene.pull().unwrap();
    *scene.server.behaviour.failing.lock().unwrap() = 1000;
    let error = scene.hub.pull(REPO, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Network { attempts: 5, .. }), "{error}");
    let error = scene.hub.locate("no/such", &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
    *scene.server.behaviour.failing.lock().unwrap() = 0;
    let error = scene.hub.locate("no/such", &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::HttpStatus { status: 404, .. }), "{error}");
}

#[test]
fn listings_and_refs_cannot_reach_out_of_the_cache() {
    for sha in ["../../x", "", "a/b", "a.b"] {
        let text = serde_json::json!({"sha": sha, "siblings": []}).to_string();
        assert!(read_listing(text.as_bytes(), "url").is_err(), "{sha}");
    }
    let text = serde_json::json!({"sha": "abc", "siblings": [{"rfilename": "../model.safetensors"},
        {"rfilename": "model/../x.safetensors"}, {"rfilename": 3}, {}]})
    .to_string();
    assert!(matches!(read_listing(text.as_bytes(), "url"), Err(Error::NotAModel { .. })));

    let scene = scene();
    let folder = scene.hub.folder(REPO).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), "../../elsewhere").unwrap();
    assert!(matches!(scene.hub.locate(REPO, &OFFLINE), Err(Error::Offline { .. })));
    assert!(scene.hub.folder("../x").is_err());
}
