//! Stamps the core with a fingerprint of the sources it was built from, so that a stale binary can be told.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

fn main() -> io::Result<()> {
    let root = PathBuf::from("../..");
    let mut files = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    collect(&root.join("crates"), &mut files)?;
    let mut named: Vec<(String, PathBuf)> = files
        .into_iter()
        .map(|file| (file.strip_prefix(&root).unwrap_or(&file).to_string_lossy().into_owned(), file.clone()))
        .collect();
    named.sort();

    let mut hash = FNV_OFFSET;
    for (name, file) in &named {
        hash = feed(hash, name.as_bytes());
        hash = feed(hash, &[0]);
        hash = feed(hash, &fs::read(file)?);
        hash = feed(hash, &[0]);
        println!("cargo:rerun-if-changed={}", file.display());
    }
    println!("cargo:rerun-if-changed={}", root.join("crates").display());
    println!("cargo:rustc-env=SOLSTICE_SOURCE_FINGERPRINT={hash:016x}");
    println!("cargo:rustc-env=SOLSTICE_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            files.push(path);
        }
    }
    Ok(())
}

fn feed(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}
