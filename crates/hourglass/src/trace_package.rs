//! A captured trace as the verbs `reduce` and `lines` are given it: metadata, manifest, directory, each held against the others.
//! Not here: what is computed from it.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Result;
use flate2::read::GzDecoder;
use probe::lines::Resolved;
use record::capture::load::{Profiled, RawTrace};
use record::capture::manifest::{MAX_MANIFEST_BYTES, Manifest};
use record::capture::raw::{CALLGRIND, PROFILE, SOURCES};
use record::capture::{CaptureMetadata, TracePackage};
use record::{Known, Record, file_digest, schema_in};

use crate::failure::usage;
use crate::replay::files;

/// No raw file is larger.
const LARGEST: u64 = 2 << 30;

/// Metadata and the hash of their file.
pub(crate) struct Described {
    pub(crate) metadata: CaptureMetadata,
    pub(crate) sha256: String,
}

/// A verified trace.
pub(crate) struct Package {
    /// Unavailable where a GPU's pass could not be profiled.
    pub(crate) raw: Known<RawTrace>,
    /// Whether a GPU ran the pass, profiled or not.
    of_gpu: bool,
    /// What a GPU's profiler said beside it.
    pub(crate) profiled: Option<Profiled>,
    /// The bytes of `callgrind.out`, if it has one.
    pub(crate) callgrind: Option<Vec<u8>>,
    pub(crate) package: TracePackage,
    /// SHA-256 of `sources.sha256`.
    pub(crate) tree_sha256: String,
}

/// The metadata in a file.
///
/// # Errors
/// No such record, or a void one.
pub(crate) fn metadata(flag: &str, path: &Path) -> Result<Described> {
    Ok(Described { metadata: files::read(flag, path)?, sha256: file_digest(&files::bytes(flag, path)?) })
}

/// The capture's metadata beside its trace directory: the one file there whose manifest is the directory's.
///
/// # Errors
/// None fits: either the directory was changed, or its metadata are elsewhere.
pub(crate) fn metadata_beside(flag: &str, directory: &Path, manifest: &Manifest) -> Result<(PathBuf, Described)> {
    let absolute = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    let parent = absolute.parent().unwrap_or(&absolute);
    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut of_this_name = None;
    let mut candidates: Vec<PathBuf> = std::fs::read_dir(parent)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    candidates.sort();
    for path in candidates.into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let Ok(bytes) = files::bytes(flag, &path) else { continue };
        if schema_in("", &bytes).is_ok_and(|schema| schema == CaptureMetadata::SCHEMA) {
            let described = metadata("--capture-metadata", &path)?;
            if described.metadata.trace.manifest_sha256 == manifest.sha256() {
                return Ok((path, described));
            }
            if described.metadata.trace.basename == name {
                of_this_name = Some(path);
            }
        }
    }
    let why = match of_this_name {
        Some(path) => format!(
            "{} is of a directory of this name whose files had other hashes: this one was changed after it was captured; \
             capture again",
            path.display()
        ),
        None => {
            "expected its capture-metadata/1 record beside it, found none that fits; name it with --capture-metadata"
                .to_owned()
        }
    };
    Err(usage(format!("{flag} {}: {why}", directory.display())))
}

/// A manifest file, which must be the one that the metadata name.
///
/// # Errors
/// It is no manifest, or another one.
pub(crate) fn manifest(flag: &str, path: &Path, described: &Described) -> Result<Manifest> {
    let named = format!("{flag} {}", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| usage(format!("{named}: cannot be read: {error}")))?;
    if !metadata.is_file() || metadata.len() > MAX_MANIFEST_BYTES as u64 {
        return Err(usage(format!("{named}: is no manifest; give the file that `hourglass capture --manifest` wrote")));
    }
    let bytes = std::fs::read(path).map_err(|error| usage(format!("{named}: cannot be read: {error}")))?;
    let manifest = Manifest::parse(&named, &bytes).map_err(|error| usage(error.to_string()))?;
    let (found, expected) = (file_digest(&bytes), &described.metadata.trace.manifest_sha256);
    if found != *expected {
        return Err(usage(format!(
            "{named}: its SHA-256 is {found}, the capture's metadata name {expected}: it was changed, or is of another \
             capture; give the three outputs of one capture"
        )));
    }
    Ok(manifest)
}

/// Hashes a directory; its manifest.
///
/// # Errors
/// Links in it, or what cannot be read.
pub(crate) fn manifest_of(flag: &str, directory: &Path) -> Result<Manifest> {
    let named = |why: String| usage(format!("{flag} {}: {why}", directory.display()));
    if !directory.is_dir() {
        return Err(named("is no directory; give the one that `hourglass capture --trace` wrote".to_owned()));
    }
    let (manifest, _) = Manifest::of_directory(directory).map_err(|error| named(error.to_string()))?;
    Ok(manifest)
}

/// Verifies every file of the directory against the manifest, then reads it.
///
/// # Errors
/// A file that is missing, too much or changed; files that are no whole trace.
pub(crate) fn open(flag: &str, directory: &Path, manifest: &Manifest, described: &Described) -> Result<Package> {
    let named = |why: String| usage(format!("{flag} {}: {why}", directory.display()));
    if !directory.is_dir() {
        return Err(named("is no directory; give the one that `hourglass capture --trace` wrote".to_owned()));
    }
    let contents = manifest.verify_directory(directory).map_err(|error| named(error.to_string()))?;
    // Hashed again as it is read, so that what is computed from is what was verified.
    let read = |name: &str| -> io::Result<Vec<u8>> {
        let path = directory.join(name);
        let expected = manifest.get(name).ok_or_else(|| io::Error::other("it is not in the manifest"))?;
        if path.metadata()?.len() > LARGEST {
            return Err(io::Error::other("it is larger than any raw file"));
        }
        let bytes = std::fs::read(&path)?;
        if file_digest(&bytes) == *expected { Ok(bytes) } else { Err(io::Error::other("it is being changed")) }
    };
    let (raw, profiled) = match manifest.get(PROFILE) {
        None => (Known::Is(RawTrace::read(read).map_err(|error| named(error.to_string()))?), None),
        Some(_) => match RawTrace::read_profiled(read, unpacked).map_err(|error| named(error.to_string()))? {
            Known::Is((raw, profiled)) => (Known::Is(raw), Some(profiled)),
            Known::Unavailable(missing) => (Known::Unavailable(missing), None),
        },
    };
    let passes = raw.known().map_or(described.metadata.steps, |raw| raw.steps.len() as u64);
    if passes != described.metadata.steps {
        return Err(named(format!(
            "holds {passes} passes, its metadata say {}; give the three outputs of one capture",
            described.metadata.steps
        )));
    }
    let samples = raw.known().map_or(described.metadata.sampling.samples, |raw| raw.samples.len() as u64);
    if samples != described.metadata.sampling.samples {
        return Err(named(format!(
            "holds {samples} samples, its metadata say {}; give the three outputs of one capture",
            described.metadata.sampling.samples
        )));
    }
    let callgrind = match manifest.get(CALLGRIND) {
        Some(_) => Some(read(CALLGRIND).map_err(|error| named(format!("{CALLGRIND}: {error}")))?),
        None => None,
    };
    let package = TracePackage {
        basename: described.metadata.trace.basename.clone(),
        files: contents.files,
        bytes: contents.bytes,
        manifest_sha256: manifest.sha256(),
    };
    let tree_sha256 = manifest.get(SOURCES).unwrap_or_default().to_owned();
    Ok(Package { raw, of_gpu: manifest.get(PROFILE).is_some(), profiled, callgrind, package, tree_sha256 })
}

/// Flags that say something of a pass that ran on the CPU.
///
/// # Errors
/// One was given, and the pass ran on a GPU.
pub(crate) fn expect_cpu(package: &Package, given: &[(&str, bool)]) -> Result<()> {
    match given.iter().find(|(_, is)| *is && package.of_gpu) {
        Some((flag, _)) => Err(usage(format!(
            "{flag}: is of passes that ran on the CPU, and this trace is a GPU's ({PROFILE} is in it); leave it out"
        ))),
        None => Ok(()),
    }
}

/// A page of a GPU's profiler, unpacked as it is read.
pub(crate) fn unpacked(bytes: Vec<u8>) -> Box<dyn BufRead> {
    Box::new(BufReader::new(GzDecoder::new(io::Cursor::new(bytes))))
}

/// What a package's addresses are, where it has samples.
pub(crate) fn resolved(package: &Package, binary: Option<&Path>, sources: &Path) -> Known<Resolved> {
    match (&package.raw, &package.profiled) {
        (Known::Is(raw), Some(profiled)) => Known::Is(Resolved::of_device(raw, profiled, sources)),
        (Known::Is(raw), None) => Known::Is(Resolved::new(raw, binary, sources)),
        (Known::Unavailable(missing), _) => Known::Unavailable(missing.clone()),
    }
}

/// The repository around the working directory, or this directory without one.
pub(crate) fn repository() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(&here).to_path_buf()
}
