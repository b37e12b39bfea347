//! Any bytes as a manifest: a message at worst, and what is read is written again as it was.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = record::capture::manifest::Manifest::parse("fuzz", bytes) {
        let text = manifest.text();
        let again = record::capture::manifest::Manifest::parse("again", text.as_bytes()).expect("its own text");
        assert_eq!(again, manifest);
        assert!(manifest.files().all(|(path, _)| !path.starts_with('/') && !path.split('/').any(|name| name == "..")));
    }
});
