//! The file that keeps a machine's ceilings between runs. Whatever is wrong with it, it is passed over with the reason.
//! Not here: whether the numbers in it still hold (`ceilings.rs`).

use crate::conditions::host;
use jiff::Timestamp;
use record::{Ceilings, Host, identity, read};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Larger files are not read: a record of a hundred thread counts has some hundred KiB.
const LARGEST: u64 = 16 << 20;

/// `$XDG_CACHE_HOME/hourglass/ceilings-<host>.json`; None where no home is known.
pub(super) fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(folder.join("hourglass").join(format!("ceilings-{}.json", &identity(&host())[..16])))
}

/// Part of the processor time that it could use, from which on a measurement counts as undisturbed.
const UNDISTURBED: f64 = 0.9;
/// For how long a disturbed one is used.
const HELD_DOWN: Duration = Duration::from_secs(60 * 60);

/// The kept ceilings for at least `threads` threads; None if there is no file.
///
/// # Errors
/// Why the file is passed over.
pub(super) fn load(path: &Path, threads: u64, oldest: Duration) -> Result<Option<Ceilings>, String> {
    let shown = path.display();
    // Asked before opening: opening a pipe would wait for a writer.
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(format!("{shown} is no regular file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{shown} cannot be read: {error}")),
    }
    let file = fs::File::open(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let ceilings: Ceilings = read(&shown.to_string(), &bytes).map_err(|error| error.to_string())?;
    fits(&ceilings, &host(), threads, oldest, Timestamp::now()).map_err(|why| format!("{shown} {why}"))?;
    Ok(Some(ceilings))
}

/// # Errors
/// Why these ceilings are not to be used here and now.
fn fits(ceilings: &Ceilings, host: &Host, threads: u64, oldest: Duration, now: Timestamp) -> Result<(), String> {
    if ceilings.void {
        return Err("is void by its own checks".to_owned());
    }
    if ceilings.conditions.host != *host {
        return Err("is of another machine, or of this one before it was changed".to_owned());
    }
    let made: Timestamp = ceilings.created.parse().map_err(|_| format!("has no date but '{}'", ceilings.created))?;
    let age = now.as_second() - made.as_second();
    // What other load held down is believed for an hour only: too low a ceiling flatters every kernel.
    let held_down = ceilings.processor_share.value().is_some_and(|share| share < UNDISTURBED);
    let oldest = if held_down { oldest.min(HELD_DOWN) } else { oldest };
    if age > oldest.as_secs() as i64 {
        let why = if held_down { ", and was measured while other processes had the processors" } else { "" };
        return Err(format!("is {} hours old{why}", age / 3600));
    }
    // A clock that was set back a little is no reason; a date in the future is.
    if age < -60 {
        return Err(format!("is of the future: {made}"));
    }
    if !ceilings.workload.threads.contains(&threads) {
        return Err(format!("has no entry for {threads} threads"));
    }
    Ok(())
}

/// Replaces the file as a whole.
///
/// # Errors
/// The operating system's.
pub(super) fn save(path: &Path, ceilings: &Ceilings) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let text = serde_json::to_vec_pretty(ceilings).map_err(std::io::Error::other)?;
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // What is left of it is of no use; that it cannot be removed either changes nothing.
        let _ = fs::remove_file(&partial);
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::measure::measure;
    use super::*;
    use record::{Reading, Unit};
    use std::sync::atomic::AtomicBool;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn what_was_kept_comes_back_and_what_does_not_fit_says_why() {
        let folder = std::env::temp_dir().join(format!("hourglass-ceilings-test-{}", std::process::id()));
        let path = folder.join("ceilings.json");
        assert_eq!(load(&path, 1, DAY), Ok(None));
        let ceilings = measure(&[1], 2, &AtomicBool::new(false), &|_, _, _| {}).unwrap();
        assert!(!ceilings.void, "{:?}", ceilings.checks);
        save(&path, &ceilings).unwrap();
        let back = load(&path, 1, DAY).unwrap().unwrap();
        assert_eq!((back.id(), &back), (ceilings.id(), &ceilings));
        // Saved again it is replaced, and nothing is left beside it.
        save(&path, &ceilings).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);

        // However busy this machine is while it is tested.
        let share = |share| Reading::measured(share, Unit::Share, 1);
        let ceilings = Ceilings { processor_share: share(0.97), ..ceilings };
        let here = host();
        let made: Timestamp = ceilings.created.parse().unwrap();
        let later = |seconds: i64| Timestamp::from_second(made.as_second() + seconds).unwrap();
        let why = |ceilings: &Ceilings, host: &Host, threads, now| fits(ceilings, host, threads, DAY, now).unwrap_err();
        assert_eq!(fits(&ceilings, &here, 1, DAY, later(86_400)), Ok(()));
        assert!(why(&ceilings, &here, 1, later(86_401)).contains("24 hours old"));
        assert!(why(&ceilings, &here, 1, later(-3600)).contains("future"));
        let disturbed = Ceilings { processor_share: share(0.5), ..ceilings.clone() };
        assert_eq!(fits(&disturbed, &here, 1, DAY, later(3_600)), Ok(()));
        assert!(why(&disturbed, &here, 1, later(3_601)).contains("other processes"));
        assert!(why(&ceilings, &here, 3, made).contains("3 threads"));
        let other = Host { processors: here.processors + 1, ..here.clone() };
        assert!(why(&ceilings, &other, 1, made).contains("another machine"));
        let void = Ceilings { void: true, ..ceilings.clone() };
        assert!(why(&void, &here, 1, made).contains("void"));
        let undated = Ceilings { created: "yesterday".into(), ..ceilings };
        assert!(why(&undated, &here, 1, made).contains("yesterday"));

        fs::write(&path, "{\"schema\": \"ceilings/1\", \"created\": 3}").unwrap();
        assert!(load(&path, 1, DAY).unwrap_err().contains("not a valid ceilings/1 record"));
        fs::write(&path, [0xff; 100]).unwrap();
        assert!(load(&path, 1, DAY).unwrap_err().contains("not JSON"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_interrupted_measurement_keeps_nothing() {
        let error = measure(&[1], 2, &AtomicBool::new(true), &|_, _, _| {}).unwrap_err();
        assert!(error.to_string().contains("nothing was kept"), "{error}");
    }
}
