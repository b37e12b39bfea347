//! A hub repository in the local cache, or downloaded into it.
//! Not here: one file over HTTP (`hub_download`), reading what lies there (`directory`).
//!
//! The cache is the one that Hugging Face's own tools keep: `models--OWNER--NAME/refs/main` names a commit,
//! `snapshots/COMMIT/` holds links into `blobs/`. The ref is written last, so a snapshot it names was once whole.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::hub_download::{Client, Target};
use crate::small_file::{TEXT_LIMIT, read_small};
use crate::source::is_repo_part;
use crate::{Error, OpenOptions, Result};

const INDEX: &str = "model.safetensors.index.json";

/// Beside `model*.safetensors`, what this program reads of a repository.
const NEEDED: [&str; 6] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", INDEX];

/// The snapshot directory of a repository: from the cache if it is whole there, else downloaded unless `offline`.
pub(crate) fn locate(repo: &str, options: &OpenOptions) -> Result<PathBuf> {
    Hub::from_environment().locate(repo, options)
}

/// Brings a repository's newest files into the cache and returns their directory; files that are there already are not
/// fetched again. An interrupted download goes on where it stopped.
/// Errors: no such repository, no permission, no network, a content check that fails, a full disk, cancelled; offline.
pub fn pull(repo: &str, options: &OpenOptions) -> Result<PathBuf> {
    let hub = Hub::from_environment();
    if options.offline { hub.locate(repo, options) } else { hub.pull(repo, options) }
}

/// Where the cache is and whom to ask.
pub(crate) struct Hub {
    cache: PathBuf,
    client: Client,
}

impl Hub {
    /// As Hugging Face's tools read it: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`; `HF_ENDPOINT`; `HF_TOKEN`,
    /// `HF_TOKEN_PATH` or the token file.
    fn from_environment() -> Hub {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let base = set("XDG_CACHE_HOME").map(PathBuf::from);
            base.unwrap_or_else(|| PathBuf::from(set("HOME").unwrap_or_default()).join(".cache")).join("huggingface")
        });
        let cache = set("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| home.join("hub"));
        let token_file = set("HF_TOKEN_PATH").map(PathBuf::from).unwrap_or_else(|| home.join("token"));
        let token = set("HF_TOKEN").or_else(|| fs::read_to_string(token_file).ok());
        let token = token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Hub { cache, client: Client::new(endpoint.trim_end_matches('/'), token) }
    }

    fn folder(&self, repo: &str) -> Result<PathBuf> {
        match repo.split_once('/') {
            Some((owner, name)) if is_repo_part(owner) && is_repo_part(name) => {
                Ok(self.cache.join(format!("models--{owner}--{name}")))
            }
            _ => Err(Error::UnknownSource { text: repo.into(), reason: "it is not of the form owner/name".into() }),
        }
    }

    fn locate(&self, repo: &str, options: &OpenOptions) -> Result<PathBuf> {
        let folder = self.folder(repo)?;
        match cached(&folder) {
            Ok(snapshot) => Ok(snapshot),
            Err(file) if options.offline => Err(Error::Offline { repo: repo.into(), file, cache: self.cache.clone() }),
            Err(_) => self.pull(repo, options),
        }
    }

    fn pull(&self, repo: &str, options: &OpenOptions) -> Result<PathBuf> {
        let folder = self.folder(repo)?;
        let url = format!("{}/api/models/{repo}/revision/main", self.client.endpoint());
        let text = self.client.get_small(&url, options)?;
        let (commit, files) = read_listing(&text, &url)?;
        let snapshot = folder.join("snapshots").join(&commit);
        for directory in [&snapshot, &folder.join("blobs"), &folder.join("refs")] {
            fs::create_dir_all(directory).map_err(|e| Error::io(directory, "make the directory", e))?;
        }
        for file in files {
            let target = Target {
                url: format!("{}/{repo}/resolve/{commit}/{file}", self.client.endpoint()),
                blobs: folder.join("blobs"),
                link: snapshot.join(&file),
                name: file,
            };
            self.client.fetch(&target, options)?;
        }
        if let Err(file) = whole(&snapshot) {
            return Err(Error::NotAModel { path: snapshot, missing: file });
        }
        let main = folder.join("refs").join("main");
        let new = folder.join("refs").join(format!(".main-{}", std::process::id()));
        fs::write(&new, &commit).map_err(|e| Error::io(&new, "write", e))?;
        fs::rename(&new, &main).map_err(|e| Error::io(&main, "write", e))?;
        Ok(snapshot)
    }
}

/// The snapshot that `refs/main` names, or the first file that is missing.
fn cached(folder: &Path) -> std::result::Result<PathBuf, String> {
    let main = read_small(&folder.join("refs").join("main"), "reference", TEXT_LIMIT).map_err(|_| "refs/main")?;
    let main = String::from_utf8_lossy(&main);
    let commit = main.trim();
    if !is_plain(commit) {
        return Err("refs/main (it names no commit)".into());
    }
    let snapshot = folder.join("snapshots").join(commit);
    whole(&snapshot)?;
    Ok(snapshot)
}

/// Whether configuration and weights are there; otherwise what is missing.
fn whole(snapshot: &Path) -> std::result::Result<(), String> {
    let there = |name: &str| snapshot.join(name).is_file();
    if !there("config.json") {
        return Err("config.json".into());
    }
    if there("model.safetensors") {
        return Ok(());
    }
    let index_path = snapshot.join(INDEX);
    match read_small(&index_path, "index", TEXT_LIMIT) {
        Ok(text) => {
            let map = crate::directory::read_index(&text, &index_path).map_err(|_| format!("{INDEX} (damaged)"))?;
            map.into_values().find(|shard| !there(shard)).map_or(Ok(()), Err)
        }
        Err(_) => Err("model.safetensors".into()),
    }
}

/// A commit hash or blob name: letters and digits only, so it is always one plain path component.
pub(crate) fn is_plain(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Commit and the needed file names out of the server's answer. Names in folders are never needed.
fn read_listing(text: &[u8], url: &str) -> Result<(String, Vec<String>)> {
    let place = PathBuf::from(url);
    let listing = crate::config_json::object(text, &place)?;
    let wrong = |part: &str, expected: &str, found: Option<&Value>| Error::Malformed {
        file: place.clone(),
        part: part.into(),
        expected: expected.into(),
        found: found.map_or("nothing".into(), Value::to_string),
    };
    let sha = listing.get("sha");
    let commit =
        sha.and_then(Value::as_str).filter(|sha| is_plain(sha)).ok_or_else(|| wrong("sha", "a commit hash", sha))?;
    let siblings = listing.get("siblings");
    let mut files: Vec<String> = siblings
        .and_then(Value::as_array)
        .ok_or_else(|| wrong("siblings", "a list of files", siblings))?
        .iter()
        .filter_map(|file| file.get("rfilename")?.as_str())
        .filter(|name| NEEDED.contains(name) || is_weights(name))
        .map(str::to_string)
        .collect();
    files.sort();
    files.dedup();
    if !files.iter().any(|file| is_weights(file)) {
        return Err(Error::NotAModel { path: place, missing: "model*.safetensors".into() });
    }
    Ok((commit.to_string(), files))
}

fn is_weights(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    plain && name.starts_with("model") && name.ends_with(".safetensors")
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
