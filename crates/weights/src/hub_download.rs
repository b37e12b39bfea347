//! One file of the hub over HTTP: resumed, checked, and only then given its name.
//! Not here: which files a model needs and where the cache is (`hub`).
//!
//! The bytes grow in `blobs/NAME.incomplete`, which is never read as the file. A connection that breaks, stalls or is
//! cancelled leaves it; the next attempt asks for the rest. Size and SHA-256 are checked before the rename.

use std::fs::{self, File, OpenOptions as FileOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::hub::is_plain;
use crate::small_file::check_regular;
use crate::{Error, OpenOptions, Result};

/// Attempts without a single new byte before giving up.
const ATTEMPTS: u32 = 5;
/// Bytes between two looks at `cancelled`.
const CHUNK: usize = 256 * 1024;
/// A listing or a small answer is never larger.
const SMALL: u64 = 16 << 20;

/// What to fetch and where it goes.
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) blobs: PathBuf,
    /// The snapshot's name for it.
    pub(crate) link: PathBuf,
    /// For the progress display.
    pub(crate) name: String,
}

pub(crate) struct Client {
    endpoint: String,
    token: Option<String>,
    /// Answers redirects itself: the hub's own headers come with the first answer.
    direct: Agent,
    following: Agent,
    /// Waiting time after the first failure; doubles with each further one.
    pub(crate) backoff: Duration,
}

/// What the server says of a file before it is fetched.
struct Facts {
    /// Also the blob's name.
    etag: String,
    size: Option<u64>,
}

/// How one attempt ended when it did not finish.
enum Failure {
    /// Worth another try.
    Transient(String),
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Final(error)
    }
}

impl Client {
    pub(crate) fn new(endpoint: &str, token: Option<String>) -> Client {
        let agent = |redirects: u32| -> Agent {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(redirects)
                .max_redirects_will_error(false)
                .redirect_auth_headers(RedirectAuthHeaders::SameHost)
                .timeout_resolve(Some(Duration::from_secs(15)))
                .timeout_connect(Some(Duration::from_secs(15)))
                .timeout_recv_response(Some(Duration::from_secs(30)))
                .timeout_per_read(Some(Duration::from_secs(15)))
                .user_agent(concat!("hourglass/", env!("CARGO_PKG_VERSION")))
                .build()
                .into()
        };
        Client {
            endpoint: endpoint.into(),
            token,
            direct: agent(0),
            following: agent(10),
            backoff: Duration::from_millis(500),
        }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The whole of a small answer.
    pub(crate) fn get_small(&self, url: &str, options: &OpenOptions) -> Result<Vec<u8>> {
        self.retry(url, options, |_| {
            let mut answer = self.ask(&self.following, "GET", url, None)?;
            check_status(&answer, url)?;
            answer.body_mut().with_config().limit(SMALL).read_to_vec().map_err(transient)
        })
    }

    /// Makes sure that `target.link` leads to the file's content.
    pub(crate) fn fetch(&self, target: &Target, options: &OpenOptions) -> Result<()> {
        let facts = self.retry(&target.url, options, |_| self.facts(&target.url))?;
        let blob = target.blobs.join(&facts.etag);
        let partial = target.blobs.join(format!("{}.incomplete", facts.etag));
        if !is_whole(&blob, facts.size) {
            let mut file = lock(&partial, options)?;
            // Another process may have finished it while this one waited.
            if !is_whole(&blob, facts.size) {
                self.retry(&target.url, options, |progress| {
                    self.attempt(target, &facts, &mut file, &partial, progress, options)
                })?;
                file.sync_all().map_err(|e| Error::io(&partial, "write", e))?;
                fs::rename(&partial, &blob).map_err(|e| Error::io(&blob, "name the finished download", e))?;
            }
        }
        link(&target.link, &facts.etag)
    }

    /// Size and content hash, from the answer that the hub itself gives (not the storage it redirects to).
    fn facts(&self, url: &str) -> std::result::Result<Facts, Failure> {
        let mut url = url.to_string();
        for _ in 0..4 {
            let answer = self.ask(&self.direct, "HEAD", &url, None)?;
            let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
            let linked = header("x-linked-etag");
            if linked.is_none() && answer.status().is_redirection() {
                // A renamed repository answers with a relative address of the hub itself.
                match header("location") {
                    Some(location) if location.starts_with('/') && !location.starts_with("//") => {
                        url = format!("{}{location}", self.endpoint);
                        continue;
                    }
                    _ => {}
                }
            }
            if linked.is_none() {
                check_status(&answer, &url)?;
            }
            let etag = linked.or(header("etag")).unwrap_or_default();
            let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
            if !is_plain(&etag) {
                return Err(Failure::Final(Error::Malformed {
                    file: url.into(),
                    part: "etag".into(),
                    expected: "a content hash".into(),
                    found: format!("{etag:?}"),
                }));
            }
            let size = header("x-linked-size").or(header("content-length")).and_then(|v| v.parse().ok());
            return Ok(Facts { etag, size });
        }
        Err(Failure::Transient("the server redirects in circles".into()))
    }

    /// One connection: asks for what is missing, appends it, and checks the whole once it is there.
    fn attempt(
        &self,
        target: &Target,
        facts: &Facts,
        file: &mut File,
        partial: &Path,
        advanced: &mut bool,
        options: &OpenOptions,
    ) -> std::result::Result<(), Failure> {
        let failed = |e| Failure::Final(Error::io(partial, "write", e));
        let mut have = file.metadata().map_err(failed)?.len();
        if facts.size.is_some_and(|size| have > size) {
            file.set_len(0).map_err(failed)?;
            have = 0;
        }
        let mut hash = Sha256::new();
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut chunk = vec![0; CHUNK];
        let mut hashed = 0;
        while hashed < have {
            check_cancelled(options, &target.name)?;
            let count = file.read(&mut chunk).map_err(failed)?;
            if count == 0 {
                break;
            }
            hash.update(&chunk[..count]);
            hashed += count as u64;
        }
        if facts.size != Some(have) || have == 0 {
            let range = (have > 0).then(|| format!("bytes={have}-"));
            let answer = self.ask(&self.following, "GET", &target.url, range.as_deref())?;
            let status = answer.status().as_u16();
            let resumes = status == 206 && content_start(&answer) == Some(have);
            if have > 0 && !resumes {
                // A server that ignores the range, or sends another one: from the beginning.
                file.set_len(0).map_err(failed)?;
                file.seek(SeekFrom::Start(0)).map_err(failed)?;
                (have, hash) = (0, Sha256::new());
                if status == 206 || status == 416 {
                    return Err(Failure::Transient("the server did not send the range asked for".into()));
                }
            }
            check_status(&answer, &target.url)?;
            let mut body = answer.into_body().into_reader();
            loop {
                check_cancelled(options, &target.name)?;
                let count = body.read(&mut chunk).map_err(|e| Failure::Transient(e.to_string()))?;
                if count == 0 {
                    break;
                }
                file.write_all(&chunk[..count]).map_err(failed)?;
                hash.update(&chunk[..count]);
                have += count as u64;
                *advanced = true;
                if facts.size.is_some_and(|size| have > size) {
                    break;
                }
                if let Some(progress) = options.progress {
                    progress(have, facts.size, &target.name);
                }
            }
        }
        match facts.size {
            Some(size) if have < size => {
                Err(Failure::Transient(format!("the connection ended after {have} of {size} bytes")))
            }
            Some(size) if have > size => Err(corrupt(file, target, format!("{size} bytes"), format!("{have} or more"))),
            _ => {
                let found = crate::hex(&hash.finalize());
                // Large files are named by their SHA-256. Small ones are named by git's hash (SHA-1), which is not checked:
                // they are JSON, and opening the model reads every one of them.
                if facts.etag.len() == 64 && !found.eq_ignore_ascii_case(&facts.etag) {
                    return Err(corrupt(file, target, format!("SHA-256 {}", facts.etag), found));
                }
                Ok(())
            }
        }
    }

    fn ask(
        &self,
        agent: &Agent,
        method: &str,
        url: &str,
        range: Option<&str>,
    ) -> std::result::Result<Response<Body>, Failure> {
        let mut request = if method == "HEAD" { agent.head(url) } else { agent.get(url) };
        request = request.header("accept-encoding", "identity");
        if let Some(range) = range {
            request = request.header("range", range);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.call().map_err(transient)?;
        match answer.status().as_u16() {
            status @ (408 | 429 | 500..=599) => Err(Failure::Transient(format!("status {status}"))),
            _ => Ok(answer),
        }
    }

    /// Repeats an attempt with growing pauses. An attempt that brought new bytes starts the count anew.
    fn retry<T>(
        &self,
        url: &str,
        options: &OpenOptions,
        mut attempt: impl FnMut(&mut bool) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            check_cancelled(options, url)?;
            let mut advanced = false;
            let last = match attempt(&mut advanced) {
                Ok(value) => return Ok(value),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(last)) => last,
            };
            failures = if advanced { 1 } else { failures + 1 };
            if failures >= ATTEMPTS {
                return Err(Error::Network { url: url.into(), attempts: failures, last });
            }
            let mut pause = self.backoff * 2u32.pow(failures - 1);
            while !pause.is_zero() {
                check_cancelled(options, url)?;
                let step = pause.min(Duration::from_millis(50));
                std::thread::sleep(step);
                pause -= step;
            }
        }
    }
}

fn transient(error: ureq::Error) -> Failure {
    Failure::Transient(error.to_string())
}

/// The bytes are wrong, so none of them may be resumed from.
fn corrupt(file: &mut File, target: &Target, expected: String, found: String) -> Failure {
    match file.set_len(0) {
        Ok(()) => Failure::Final(Error::Corrupt { url: target.url.clone(), expected, found }),
        Err(e) => Failure::Final(Error::io(&target.blobs, "discard a damaged download in", e)),
    }
}

fn check_cancelled(options: &OpenOptions, what: &str) -> Result<()> {
    if options.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed)) {
        return Err(Error::Cancelled { doing: format!("downloading {what}; run the same command to go on") });
    }
    Ok(())
}

fn check_status(answer: &Response<Body>, url: &str) -> Result<()> {
    let status = answer.status().as_u16();
    let advice = match status {
        200..=299 => return Ok(()),
        401 | 403 => "the repository is private, gated or does not exist: check the name, and set HF_TOKEN",
        404 => "there is no such repository or file: check the name",
        _ => "the hub refuses: try again later, or set HF_ENDPOINT to another hub",
    };
    Err(Error::HttpStatus { url: url.into(), status, advice })
}

/// Where the bytes of a partial answer begin (`Content-Range: bytes START-END/SIZE`).
fn content_start(answer: &Response<Body>) -> Option<u64> {
    let range = answer.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn is_whole(blob: &Path, size: Option<u64>) -> bool {
    fs::metadata(blob).is_ok_and(|data| data.is_file() && size.is_none_or(|size| data.len() == size))
}

/// Opens the partial file for this process alone, waiting for another that is downloading it.
fn lock(partial: &Path, options: &OpenOptions) -> Result<File> {
    let failed = |e| Error::io(partial, "write", e);
    loop {
        if let Ok(data) = fs::metadata(partial) {
            check_regular(partial, &data)?;
        }
        let file =
            FileOptions::new().read(true).write(true).create(true).truncate(false).open(partial).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    check_cancelled(options, "a file that another process is downloading")?;
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
        }
        // The one who held it may have renamed this very file; then what is locked has another name now.
        let same = fs::metadata(partial).is_ok_and(|now| {
            use std::os::unix::fs::MetadataExt;
            file.metadata().is_ok_and(|mine| (mine.dev(), mine.ino()) == (now.dev(), now.ino()))
        });
        if same {
            return Ok(file);
        }
    }
}

/// Points the snapshot's name at the blob, replacing what was there.
fn link(link: &Path, etag: &str) -> Result<()> {
    let failed = |e| Error::io(link, "link to the download", e);
    let relative = Path::new("../../blobs").join(etag);
    if fs::read_link(link).is_ok_and(|now| now == relative) {
        return Ok(());
    }
    let new = link.with_file_name(format!(".link-{}", std::process::id()));
    drop(fs::remove_file(&new));
    std::os::unix::fs::symlink(&relative, &new).map_err(failed)?;
    fs::rename(&new, link).map_err(failed)
}
