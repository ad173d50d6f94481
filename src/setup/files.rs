//! Files of an installation: what has to be done to each, what was there before, and how it comes back.
//!
//! Before a file is touched, its former self lies in the backup and the entry in the manifest, so that an
//! installation that was cut short is undone too.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Target, What};
use crate::command::failure::{self, Failure};
use crate::command::out;
use crate::launcher;

/// What is done to one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is there yet.
    Install,
    /// Something else is there.
    Replace,
    /// It is there already.
    Same,
    /// The administrator has changed it: it stays.
    Keep,
}

impl Step {
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Install | Self::Replace)
    }

    /// The line that is printed.
    pub(super) fn line(self, root: &Path, target: &Target) -> String {
        let path = below(root, &target.path);
        let shown = match &target.what {
            What::Link(to) => format!("{} -> {}", path.display(), to.display()),
            What::File(_) => path.display().to_string(),
        };
        match self {
            Self::Install => format!("install  {shown}"),
            Self::Replace => format!("replace  {shown}"),
            Self::Same => format!("same     {shown}"),
            Self::Keep => format!("keep     {shown} (edited; not replaced)"),
        }
    }
}

/// What was at a path before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Before {
    Nothing,
    File {
        backup: String,
        mode: u32,
        uid: u32,
        gid: u32,
        modified_s: i64,
        modified_ns: i64,
    },
    Link {
        to: PathBuf,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    before: Before,
    /// Hash of what was installed.
    digest: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: String,
    entries: Vec<Entry>,
    /// Directories that were made, parents first.
    dirs: Vec<PathBuf>,
    /// The state directory was there before.
    state_was_there: bool,
}

/// The memory of an installation.
#[derive(Debug)]
pub(super) struct Installed {
    dir: PathBuf,
    manifest: Manifest,
    new: bool,
}

impl Installed {
    /// Reads the manifest; there is none before the first installation.
    pub(super) fn load(dir: &Path) -> Result<Self, Failure> {
        let file = dir.join("manifest.json");
        let (manifest, new) = match fs::read(&file) {
            Ok(bytes) => {
                let manifest = serde_json::from_slice(&bytes).map_err(|e| {
                    Failure::new(failure::CONFIG, format!("{} is damaged: {e}", file.display()))
                        .with_hint("its backups lie beside it; put them back by hand, then remove the directory")
                })?;
                (manifest, false)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => (Manifest::default(), true),
            // A user who may not read it may still see what would change.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => (Manifest::default(), true),
            Err(e) => return Err(cannot("read", &file, &e)),
        };
        Ok(Self {
            dir: dir.to_owned(),
            manifest,
            new,
        })
    }

    /// Whether nothing was installed yet.
    pub(super) fn is_new(&self) -> bool {
        self.new
    }

    /// Remembers whether the service's state was there before the first installation.
    pub(super) fn note_state(&mut self, state: &Path) {
        self.manifest.state_was_there = state.exists();
    }

    /// What has to be done to a target.
    pub(super) fn step(&self, root: &Path, target: &Target) -> Result<Step, Failure> {
        let path = below(root, &target.path);
        let Some(found) = digest_of(&path).map_err(|e| cannot("read", &path, &e))? else {
            return Ok(Step::Install);
        };
        if found == digest(target) && (!target.launcher || launcher::has_capability(&path)) {
            return Ok(Step::Same);
        }
        let known = self.entry(&target.path);
        if target.config && known.is_none_or(|e| e.digest != found) {
            return Ok(Step::Keep);
        }
        Ok(Step::Replace)
    }

    fn entry(&self, path: &Path) -> Option<&Entry> {
        self.manifest.entries.iter().find(|e| e.path == path)
    }

    /// Carries a step out.
    pub(super) fn apply(
        &mut self,
        root: &Path,
        target: &Target,
        step: &Step,
    ) -> Result<(), Failure> {
        if !step.changes() {
            return Ok(());
        }
        let path = below(root, &target.path);
        self.make_dirs(root, &self.dir.clone())?;
        self.make_dirs(root, &path)?;
        let digest = digest(target);
        match self
            .manifest
            .entries
            .iter_mut()
            .find(|e| e.path == target.path)
        {
            // What was there before the first installation stays the backup.
            Some(entry) => entry.digest = digest,
            None => {
                let before = self.back_up(&path)?;
                self.manifest.entries.push(Entry {
                    path: target.path.clone(),
                    before,
                    digest,
                });
            }
        }
        self.save()?;
        if target.launcher {
            return launcher::install(&path, None).map_err(|e| cannot("write", &path, &e));
        }
        place(&path, &target.what, target.mode).map_err(|e| cannot("write", &path, &e))
    }

    /// Makes the directories above a path; those that are new are remembered.
    fn make_dirs(&mut self, root: &Path, path: &Path) -> Result<(), Failure> {
        let missing: Vec<PathBuf> = path
            .ancestors()
            .skip(1)
            .take_while(|dir| !dir.exists())
            .map(Path::to_owned)
            .collect();
        for dir in missing.into_iter().rev() {
            fs::create_dir(&dir)
                .and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(0o755)))
                .map_err(|e| cannot("make", &dir, &e))?;
            let plain = Path::new("/").join(dir.strip_prefix(root).unwrap_or(&dir));
            self.manifest.dirs.push(plain);
        }
        Ok(())
    }

    fn back_up(&self, path: &Path) -> Result<Before, Failure> {
        let meta = match path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Before::Nothing),
            other => other.map_err(|e| cannot("look at", path, &e))?,
        };
        if meta.is_symlink() {
            let to = fs::read_link(path).map_err(|e| cannot("read", path, &e))?;
            return Ok(Before::Link { to });
        }
        let backup = format!("{}", self.manifest.entries.len());
        let to = self.dir.join(&backup);
        self.make_memory()?;
        fs::copy(path, &to).map_err(|e| cannot("copy", path, &e))?;
        Ok(Before::File {
            backup,
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            modified_s: meta.mtime(),
            modified_ns: meta.mtime_nsec(),
        })
    }

    fn make_memory(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o700)))
            .map_err(|e| cannot("make", &self.dir, &e))
    }

    fn save(&mut self) -> Result<(), Failure> {
        self.make_memory()?;
        env!("CARGO_PKG_VERSION").clone_into(&mut self.manifest.version);
        let text = serde_json::to_vec_pretty(&self.manifest)
            .map_err(|e| Failure::new(failure::INTERNAL, e.to_string()))?;
        let file = self.dir.join("manifest.json");
        place(&file, &What::File(text), 0o600).map_err(|e| cannot("write", &file, &e))?;
        self.new = false;
        Ok(())
    }

    /// Puts everything back; how many files were edited and stay.
    pub(super) fn undo(
        self,
        root: &Path,
        memory: &Path,
        state: &Path,
        dry: bool,
    ) -> Result<usize, Failure> {
        let mut kept = 0;
        for entry in self.manifest.entries.iter().rev() {
            let path = below(root, &entry.path);
            let found = digest_of(&path).map_err(|e| cannot("read", &path, &e))?;
            if found.is_some_and(|found| found != entry.digest) {
                kept += 1;
                out::print(&format!("keep     {} (edited)\n", path.display()))?;
                continue;
            }
            let line = match &entry.before {
                Before::Nothing => "remove ",
                Before::File { .. } | Before::Link { .. } => "restore",
            };
            out::print(&format!("{line}  {}\n", path.display()))?;
            if !dry {
                self.put_back(&path, &entry.before)
                    .map_err(|e| cannot("restore", &path, &e))?;
            }
        }
        let forget = if self.manifest.state_was_there {
            memory
        } else {
            state
        };
        out::print(&format!("remove   {}\n", forget.display()))?;
        if !dry {
            if kept == 0 || forget == state {
                fs::remove_dir_all(forget).map_err(|e| cannot("remove", forget, &e))?;
            }
            for dir in self.manifest.dirs.iter().rev() {
                // What others put there in the meantime keeps it.
                let _ = fs::remove_dir(below(root, dir));
            }
        }
        Ok(kept)
    }

    fn put_back(&self, path: &Path, before: &Before) -> io::Result<()> {
        match before {
            Before::Nothing => match fs::remove_file(path) {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            },
            Before::Link { to } => place(path, &What::Link(to.clone()), 0o777),
            Before::File {
                backup,
                mode,
                uid,
                gid,
                modified_s,
                modified_ns,
            } => {
                let bytes = fs::read(self.dir.join(backup))?;
                place(path, &What::File(bytes), *mode)?;
                lchown(path, Some(*uid), Some(*gid))?;
                // A change of owner may clear bits of the mode.
                fs::set_permissions(path, Permissions::from_mode(*mode))?;
                let at = nix::sys::time::TimeSpec::new(*modified_s, *modified_ns);
                nix::sys::stat::utimensat(
                    nix::fcntl::AT_FDCWD,
                    path,
                    &at,
                    &at,
                    nix::sys::stat::UtimensatFlags::NoFollowSymlink,
                )?;
                Ok(())
            }
        }
    }
}

/// Fails before anything is changed if a target could not be written.
pub(super) fn check_writable<'a>(
    root: &Path,
    targets: impl Iterator<Item = &'a Path>,
) -> Result<(), Failure> {
    for target in targets.chain([Path::new("/var/lib/gshare/setup")]) {
        let path = below(root, target);
        let Some(dir) = path.ancestors().skip(1).find(|dir| dir.exists()) else {
            continue;
        };
        let read_only = nix::sys::statvfs::statvfs(dir)
            .is_ok_and(|s| s.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
        if read_only {
            let text = format!(
                "{} is on a read-only file system; nothing was changed",
                dir.display()
            );
            return Err(Failure::new(failure::NOT_PERMITTED, text)
                .with_hint("mount it writable, or choose another place with --prefix DIR"));
        }
        if !dir.is_dir() {
            let text = format!("{} is not a directory; nothing was changed", dir.display());
            return Err(Failure::new(failure::NOT_PERMITTED, text));
        }
    }
    Ok(())
}

/// Puts a file or a link at `path` in one step: whoever runs the old file goes on with it.
fn place(path: &Path, what: &What, mode: u32) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    match what {
        What::File(bytes) => {
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(bytes)?;
            file.as_file()
                .set_permissions(Permissions::from_mode(mode))?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|e| e.error)?;
        }
        What::Link(to) => {
            let name = format!(".gshare-setup-{}", std::process::id());
            let hidden = dir.join(name);
            symlink(to, &hidden)?;
            fs::rename(&hidden, path)?;
        }
    }
    Ok(())
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => failure::NOT_PERMITTED,
        _ => failure::INTERNAL,
    };
    Failure::new(code, format!("cannot {verb} {}: {error}", path.display()))
}

fn digest(target: &Target) -> String {
    match &target.what {
        What::File(bytes) => hash(bytes),
        What::Link(to) => format!("link {}", to.display()),
    }
}

/// Identifies what is at a path; `None` if nothing is.
fn digest_of(path: &Path) -> io::Result<Option<String>> {
    match path.symlink_metadata() {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
        Ok(meta) if meta.is_symlink() => {
            Ok(Some(format!("link {}", fs::read_link(path)?.display())))
        }
        Ok(_) => Ok(Some(hash(&fs::read(path)?))),
    }
}

fn hash(bytes: &[u8]) -> String {
    use sha2::Digest;
    let sum = sha2::Sha256::digest(bytes);
    sum.iter().fold(String::new(), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str, text: &str) -> Target {
        Target {
            path: path.into(),
            what: What::File(text.into()),
            mode: 0o644,
            config: false,
            launcher: false,
        }
    }

    fn install(root: &Path, targets: &[Target]) -> Vec<Step> {
        let mut known = Installed::load(&root.join("memory")).expect("readable");
        let mut steps = Vec::new();
        for target in targets {
            let step = known.step(root, target).expect("step");
            known.apply(root, target, &step).expect("applied");
            steps.push(step);
        }
        steps
    }

    fn undo(root: &Path) -> usize {
        let memory = root.join("memory");
        let known = Installed::load(&memory).expect("readable");
        known.undo(root, &memory, &memory, false).expect("undone")
    }

    #[test]
    fn what_was_there_comes_back_and_what_was_edited_stays() {
        let root = tempfile::tempdir().expect("dir");
        let root = root.path();
        fs::write(root.join("old"), "before").expect("written");
        fs::set_permissions(root.join("old"), Permissions::from_mode(0o640)).expect("mode");
        let when = root.join("old").metadata().expect("there").mtime_nsec();
        let mut targets = [
            target("/old", "1"),
            target("/a/b/new", "1"),
            target("/mine", "1"),
        ];
        targets[2].config = true;
        assert_eq!(
            install(root, &targets),
            [Step::Replace, Step::Install, Step::Install]
        );
        assert_eq!(install(root, &targets), [Step::Same; 3]);
        // An upgrade replaces what setup wrote, and an untouched configuration.
        for target in &mut targets {
            target.what = What::File(b"2".to_vec());
        }
        assert_eq!(install(root, &targets), [Step::Replace; 3]);
        fs::write(root.join("mine"), "edited").expect("written");
        for target in &mut targets {
            target.what = What::File(b"3".to_vec());
        }
        assert_eq!(
            install(root, &targets),
            [Step::Replace, Step::Replace, Step::Keep]
        );
        assert_eq!(undo(root), 1);
        let old = root.join("old");
        assert_eq!(fs::read_to_string(&old).expect("there"), "before");
        let meta = old.metadata().expect("there");
        assert_eq!((meta.mode() & 0o7777, meta.mtime_nsec()), (0o640, when));
        assert!(!root.join("a").exists());
        assert_eq!(
            fs::read_to_string(root.join("mine")).expect("there"),
            "edited"
        );
    }

    #[test]
    fn a_configuration_that_setup_did_not_write_is_never_replaced() {
        let root = tempfile::tempdir().expect("dir");
        fs::write(root.path().join("mine"), "by hand").expect("written");
        let mut mine = target("/mine", "1");
        mine.config = true;
        assert_eq!(install(root.path(), &[mine]), [Step::Keep]);
    }

    #[test]
    fn an_installation_cut_short_is_undone() {
        let root = tempfile::tempdir().expect("dir");
        let root = root.path();
        let mut known = Installed::load(&root.join("memory")).expect("readable");
        // The manifest is written, the file is not: a directory stands in its way.
        fs::create_dir(root.join("x")).expect("dir");
        fs::write(root.join("x/y"), "").expect("file");
        let link = Target {
            what: What::Link("z".into()),
            ..target("/new/link", "")
        };
        known.apply(root, &link, &Step::Install).expect("applied");
        fs::remove_file(root.join("new/link")).expect("gone");
        assert_eq!(undo(root), 0);
        assert!(!root.join("new").exists() && root.join("x/y").exists());
    }
}
