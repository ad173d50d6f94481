//! Files of an installation: the step for each, the previous state, and its restoration.
//!
//! Before a file is changed, its previous contents are in the backup and its entry in the manifest, so that an
//! interrupted installation can be undone, too.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Target, What};
use super::tree::{self, Tree};
use crate::command::failure::{self, Failure};
use crate::command::out;
use crate::hash::sha256;
use crate::launcher;

/// The step for one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is there yet.
    Install,
    /// Something else is there.
    Replace,
    /// The file was changed since setup installed it: the changed file is kept beside the new one.
    Supersede,
    /// It is already up to date.
    Same,
    /// The administrator has changed it: it stays.
    Keep,
    /// The administrator has removed it: it stays removed.
    Gone,
}

impl Step {
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Install | Self::Replace | Self::Supersede)
    }

    /// Its printed line.
    pub(super) fn line(self, tree: &Tree, target: &Target) -> String {
        let path = tree.shown(&target.path);
        let shown = match &target.what {
            What::Link(to) => format!("{} -> {}", path.display(), to.display()),
            What::File(_) => path.display().to_string(),
        };
        match self {
            Self::Install => format!("install  {shown}"),
            Self::Replace => format!("replace  {shown}"),
            Self::Supersede => {
                let beside = tree.shown(&beside(&target.path));
                format!(
                    "replace  {shown} (edited; the old file is kept as {})",
                    beside.display()
                )
            }
            Self::Same => format!("same     {shown}"),
            Self::Keep => format!("keep     {shown} (edited; not replaced)"),
            Self::Gone => format!("skip     {shown} (you removed it; not installed again)"),
        }
    }
}

/// Previous state of a path.
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
    /// Hash of the installed contents.
    digest: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: String,
    entries: Vec<Entry>,
    /// Created directories, parents first.
    dirs: Vec<PathBuf>,
    /// The state directory existed before.
    state_was_there: bool,
}

/// The record of an installation.
#[derive(Debug)]
pub(super) struct Installed {
    tree: Tree,
    dir: PathBuf,
    manifest: Manifest,
    new: bool,
}

impl Installed {
    /// Reads the manifest in this directory of the tree; empty before the first installation.
    pub(super) fn load(tree: Tree, dir: &Path) -> Result<Self, Failure> {
        let file = tree.shown(&dir.join("manifest.json"));
        let (manifest, new) = match own(&tree, &dir.join("manifest.json")) {
            Ok(bytes) => {
                let manifest = serde_json::from_slice(&bytes).map_err(|e| {
                    Failure::new(failure::CONFIG, format!("{} is damaged: {e}", file.display()))
                        .with_hint(format!("the files that setup replaced are in {0}: put them back by hand, then remove {0}", tree.shown(dir).display()))
                })?;
                (manifest, false)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => (Manifest::default(), true),
            // A user without access may still see what would change.
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => (Manifest::default(), true),
            Err(e) => return Err(cannot("read", &file, &e)),
        };
        Ok(Self {
            tree,
            dir: dir.to_owned(),
            manifest,
            new,
        })
    }

    /// Whether nothing was installed yet.
    pub(super) fn is_new(&self) -> bool {
        self.new
    }

    /// Records whether the service's state existed before the first installation.
    pub(super) fn note_state(&mut self, state: &Path) {
        self.manifest.state_was_there = self.tree.find(state).is_ok();
    }

    /// The tree, to create something in it.
    pub(super) fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// The tree of the installation.
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(super) fn step(&self, target: &Target) -> Result<Step, Failure> {
        let shown = self.tree.shown(&target.path);
        let Some(found) =
            digest_of(&self.tree, &target.path).map_err(|e| cannot("read", &shown, &e))?
        else {
            let gone = target.config && self.entry(&target.path).is_some();
            return Ok(if gone { Step::Gone } else { Step::Install });
        };
        let place = self.tree.place(&target.path);
        let has_capability = || place.is_ok_and(|place| launcher::has_capability(&place));
        if found == digest(target) && (!target.launcher || has_capability()) {
            return Ok(Step::Same);
        }
        let known = self.entry(&target.path);
        let edited = known.map(|entry| entry.digest != found);
        Ok(match (target.config, edited) {
            // A program with a capability is not edited, and no second one may lie beside it.
            _ if target.launcher => Step::Replace,
            (true, None | Some(true)) => Step::Keep,
            (false, Some(true)) => Step::Supersede,
            _ => Step::Replace,
        })
    }

    fn entry(&self, path: &Path) -> Option<&Entry> {
        self.manifest.entries.iter().find(|e| e.path == path)
    }

    /// Carries out a step.
    pub(super) fn apply(&mut self, target: &Target, step: &Step) -> Result<(), Failure> {
        if !step.changes() {
            return Ok(());
        }
        let shown = self.tree.shown(&target.path);
        if *step == Step::Supersede {
            let kept = self.tree.place(&beside(&target.path)).and_then(|beside| {
                match fs::remove_file(&*beside) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
                fs::hard_link(&*self.tree.place(&target.path)?, &*beside)
            });
            kept.map_err(|e| cannot("keep", &shown, &e))?;
        }
        self.make_dirs(&self.dir.clone())?;
        self.make_dirs(&target.path)?;
        let digest = digest(target);
        match self
            .manifest
            .entries
            .iter_mut()
            .find(|e| e.path == target.path)
        {
            // The backup stays that of before the first installation.
            Some(entry) => entry.digest = digest,
            None => {
                let before = self.back_up(&target.path)?;
                self.manifest.entries.push(Entry {
                    path: target.path.clone(),
                    before,
                    digest,
                });
            }
        }
        self.save()?;
        let written = self.tree.place(&target.path).and_then(|path| {
            if target.launcher {
                return launcher::install(&path, None);
            }
            place(&path, &target.what, target.mode)
        });
        written.map_err(|e| cannot("write", &shown, &e))
    }

    /// Creates the directories above a path, and records the new ones.
    fn make_dirs(&mut self, path: &Path) -> Result<(), Failure> {
        let made = self.tree.make_dirs(path);
        let made = made.map_err(|(dir, error)| cannot("make", &dir, &error))?;
        self.manifest.dirs.extend(made);
        Ok(())
    }

    fn back_up(&self, path: &Path) -> Result<Before, Failure> {
        let shown = self.tree.shown(path);
        let failed = |verb: &'static str| {
            let shown = shown.clone();
            move |e: io::Error| cannot(verb, &shown, &e)
        };
        let place = self.tree.place(path).map_err(failed("read"))?;
        let meta = match place.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Before::Nothing),
            other => other.map_err(failed("read"))?,
        };
        if meta.is_symlink() {
            let to = fs::read_link(&*place).map_err(failed("read"))?;
            return Ok(Before::Link { to });
        }
        let backup = format!("{}", self.manifest.entries.len());
        self.make_memory()?;
        let copied = tree::read(&place).and_then(|bytes| {
            let to = self.tree.place(&self.dir.join(&backup))?;
            self::place(&to, &What::File(bytes), meta.mode() & 0o777)
        });
        copied.map_err(failed("copy"))?;
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
        let make = || {
            let dir = self.tree.place(&self.dir)?;
            match fs::create_dir(&*dir) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                    let meta = dir.symlink_metadata()?;
                    if !meta.is_dir() || !is_own(&meta) {
                        return Err(io::Error::new(ErrorKind::PermissionDenied, NOT_OURS));
                    }
                }
                other => other?,
            }
            fs::set_permissions(&*dir, Permissions::from_mode(0o700))
        };
        make().map_err(|e| cannot("make", &self.tree.shown(&self.dir), &e))
    }

    fn save(&mut self) -> Result<(), Failure> {
        self.make_memory()?;
        env!("CARGO_PKG_VERSION").clone_into(&mut self.manifest.version);
        let text = serde_json::to_vec_pretty(&self.manifest)
            .map_err(|e| Failure::new(failure::INTERNAL, e.to_string()))?;
        let file = self.dir.join("manifest.json");
        let written = self.tree.place(&file);
        let written = written.and_then(|to| place(&to, &What::File(text), 0o600));
        written.map_err(|e| cannot("write", &self.tree.shown(&file), &e))?;
        self.new = false;
        Ok(())
    }

    /// Restores everything; returns the number of edited files, which stay.
    pub(super) fn undo(self, state: &Path, dry: bool) -> Result<usize, Failure> {
        let mut kept = 0;
        for entry in self.manifest.entries.iter().rev() {
            let path = self.tree.shown(&entry.path);
            let found =
                digest_of(&self.tree, &entry.path).map_err(|e| cannot("read", &path, &e))?;
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
                self.put_back(&entry.path, &entry.before)
                    .map_err(|e| cannot("restore", &path, &e))?;
            }
        }
        let forget = if self.manifest.state_was_there {
            self.dir.as_path()
        } else {
            state
        };
        let shown = self.tree.shown(forget);
        out::print(&format!("remove   {}\n", shown.display()))?;
        if !dry {
            if kept == 0 || forget == state {
                let removed = self.tree.place(forget);
                let removed = removed.and_then(|dir| fs::remove_dir_all(&*dir));
                removed.map_err(|e| cannot("remove", &shown, &e))?;
            }
            for dir in self.manifest.dirs.iter().rev() {
                // A directory with others' files stays.
                let _ = self.tree.place(dir).map(|dir| fs::remove_dir(&*dir));
            }
        }
        Ok(kept)
    }

    fn put_back(&self, path: &Path, before: &Before) -> io::Result<()> {
        let found = match (self.tree.place(path), before) {
            (Err(e), Before::Nothing) if e.kind() == ErrorKind::NotFound => return Ok(()),
            (found, _) => found?,
        };
        let path: &Path = &found;
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
                let bytes = own(&self.tree, &self.dir.join(backup))?;
                let dir = path.parent().unwrap_or(Path::new("/"));
                let mut file = tempfile::NamedTempFile::new_in(dir)?;
                file.write_all(&bytes)?;
                let open = file.as_file();
                fchown(open, Some(*uid), Some(*gid))?;
                // A change of owner may clear bits of the mode.
                open.set_permissions(Permissions::from_mode(*mode))?;
                let at = nix::sys::time::TimeSpec::new(*modified_s, *modified_ns);
                nix::sys::stat::futimens(open, &at, &at)?;
                file.persist(path).map_err(|e| e.error)?;
                Ok(())
            }
        }
    }
}

/// Fails before any change if a target cannot be written.
pub(super) fn check_writable<'a>(
    tree: &Tree,
    targets: impl Iterator<Item = &'a Path>,
) -> Result<(), Failure> {
    for target in targets.chain([Path::new("/var/lib/gshare/setup")]) {
        let mut above = target.ancestors().skip(1);
        let found = above.find_map(|dir| Some((dir, tree.find(dir).ok()?)));
        let Some((dir, file)) = found else {
            continue;
        };
        let shown = tree.shown(dir);
        let read_only = nix::sys::statvfs::fstatvfs(&file)
            .is_ok_and(|s| s.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
        if read_only {
            let text = format!(
                "{} is on a read-only file system; nothing was changed",
                shown.display()
            );
            return Err(Failure::new(failure::NOT_PERMITTED, text)
                .with_hint("mount it writable, or choose another place with --prefix DIR"));
        }
        if !tree::is_dir(&file).unwrap_or(false) {
            let text = format!(
                "{} is not a directory; nothing was changed",
                shown.display()
            );
            return Err(Failure::new(failure::NOT_PERMITTED, text));
        }
    }
    Ok(())
}

/// Where an edited file is kept when a new one replaces it.
fn beside(path: &Path) -> PathBuf {
    path.with_added_extension("edited")
}

/// Replaces `path` by a file or link in one step, so that running programs are not affected.
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

/// A file that others could write is not trusted as a record: root would restore files of their choice.
const NOT_OURS: &str = "it belongs to another user, or others can write it";

fn is_own(meta: &fs::Metadata) -> bool {
    let own = [0, nix::unistd::geteuid().as_raw()].contains(&meta.uid());
    own && meta.mode() & 0o022 == 0
}

/// Reads a file of the record that only this user can have written.
fn own(tree: &Tree, path: &Path) -> io::Result<Vec<u8>> {
    let place = tree.place(path)?;
    let dir = place.parent().unwrap_or(Path::new("/")).metadata()?;
    if !is_own(&dir) || !is_own(&place.symlink_metadata()?) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, NOT_OURS));
    }
    tree::read(&place)
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
        What::File(bytes) => sha256(bytes),
        What::Link(to) => format!("link {}", to.display()),
    }
}

/// A hash of what is at a path; `None` if nothing is.
fn digest_of(tree: &Tree, path: &Path) -> io::Result<Option<String>> {
    let gone = |e: &io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let place = match tree.place(path) {
        Err(e) if gone(&e) => return Ok(None),
        other => other?,
    };
    match place.symlink_metadata() {
        Err(e) if gone(&e) => Ok(None),
        Err(e) => Err(e),
        Ok(meta) if meta.is_symlink() => {
            Ok(Some(format!("link {}", fs::read_link(&*place)?.display())))
        }
        Ok(_) => Ok(Some(sha256(&tree::read(&place)?))),
    }
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
        let mut known = loaded(root).expect("readable");
        let mut steps = Vec::new();
        for target in targets {
            let step = known.step(target).expect("step");
            known.apply(target, &step).expect("applied");
            steps.push(step);
        }
        steps
    }

    fn undo(root: &Path) -> usize {
        let known = loaded(root).expect("readable");
        known.undo(Path::new("/memory"), false).expect("undone")
    }

    fn loaded(root: &Path) -> Result<Installed, Failure> {
        let tree = Tree::open(root).expect("opened");
        Installed::load(tree, Path::new("/memory"))
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
        // An upgrade replaces files that setup wrote, and an unchanged configuration.
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
    fn an_upgrade_loses_no_edit_and_brings_nothing_back() {
        let root = tempfile::tempdir().expect("dir");
        let root = root.path();
        let mut targets = [target("/unit", "1"), target("/mine", "1")];
        targets[1].config = true;
        install(root, &targets);
        fs::write(root.join("unit"), "edited").expect("written");
        fs::remove_file(root.join("mine")).expect("removed");
        for (version, steps) in [
            ("1", [Step::Supersede, Step::Gone]),
            ("2", [Step::Replace, Step::Gone]),
        ] {
            for target in &mut targets {
                target.what = What::File(version.into());
            }
            assert_eq!(install(root, &targets), steps);
            let read = |name: &str| fs::read_to_string(root.join(name)).expect("there");
            assert_eq!(
                (read("unit"), read("unit.edited")),
                (version.into(), "edited".into())
            );
        }
        assert_eq!(undo(root), 0);
        assert!(!root.join("unit").exists() && root.join("unit.edited").exists());
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
        let mut known = loaded(root).expect("readable");
        // The manifest is written, the file is not: a directory is in its way.
        fs::create_dir(root.join("x")).expect("dir");
        fs::write(root.join("x/y"), "").expect("file");
        let link = Target {
            what: What::Link("z".into()),
            ..target("/new/link", "")
        };
        known.apply(&link, &Step::Install).expect("applied");
        fs::remove_file(root.join("new/link")).expect("gone");
        assert_eq!(undo(root), 0);
        assert!(!root.join("new").exists() && root.join("x/y").exists());
    }

    #[test]
    fn links_of_a_hostile_tree_lead_nowhere_outside() {
        let dir = tempfile::tempdir().expect("dir");
        let (root, outside) = (dir.path().join("image"), dir.path().join("outside"));
        for made in ["image/srv", "outside/bin"] {
            fs::create_dir_all(dir.path().join(made)).expect("made");
        }
        let name = outside.to_str().expect("text").to_owned();
        let precious = outside.join("bin/precious");
        fs::write(&precious, "precious").expect("written");
        let link = |to: &str, at: &str| symlink(to, root.join(at)).expect("linked");
        link(&name, "abs");
        link("../outside", "rel");
        link("../../../../../../../..", "up");
        link(&format!("{name}/bin/precious"), "file");
        link("srv", "kept");
        let targets = [
            target("/abs/bin/a", "1"),
            target("/rel/bin/b", "1"),
            target(&format!("/up{name}/bin/c"), "1"),
            target("/file", "1"),
            target("/kept/d", "1"),
        ];
        let mut known = loaded(&root).expect("readable");
        for target in &targets {
            // The target of the link may not exist in the tree yet.
            if let Ok(step) = known.step(target) {
                let _ = known.apply(target, &step);
            }
        }
        let left: Vec<_> = fs::read_dir(outside.join("bin"))
            .expect("listed")
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, ["precious"], "files landed outside");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
        assert_eq!(
            fs::read_to_string(root.join("srv/d")).expect("there"),
            "1",
            "a link that stays inside is followed"
        );
    }

    #[test]
    fn what_is_no_file_or_too_large_is_not_read() {
        let dir = tempfile::tempdir().expect("dir");
        let large = dir.path().join("large");
        let file = fs::File::create(&large).expect("made");
        file.set_len(1 << 40).expect("a hole");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
        for name in ["/large", "/pipe"] {
            let step = loaded(dir.path()).expect("new").step(&target(name, "1"));
            let said = step.map_err(|e| e.to_string());
            assert!(
                said.as_ref().is_err_and(|e| e.contains("1 GiB")),
                "{said:?}"
            );
        }
    }

    #[test]
    fn a_memory_that_somebody_else_wrote_is_not_believed() {
        let dir = tempfile::tempdir().expect("dir");
        let root = dir.path();
        fs::create_dir(root.join("memory")).expect("made");
        // A backup of their choice would be restored as root's file, with a mode of their choice.
        let text = r#"{"version":"0","entries":[{"path":"/x","before":{"File":{"backup":"/etc/passwd","mode":2541,
            "uid":0,"gid":0,"modified_s":0,"modified_ns":0}},"digest":"-"}],"dirs":[],"state_was_there":false}"#;
        let manifest = root.join("memory/manifest.json");
        fs::write(&manifest, text).expect("written");
        for (dir_mode, mode) in [(0o777, 0o644), (0o755, 0o666)] {
            let set = |path: &Path, mode: u32| {
                fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
            };
            set(&root.join("memory"), dir_mode);
            set(&manifest, mode);
            assert!(loaded(root).is_err(), "{dir_mode:o} {mode:o}");
        }
        // A trusted manifest: its backups are those beside it.
        let set = fs::set_permissions(&manifest, Permissions::from_mode(0o600));
        set.expect("set");
        let known = loaded(root).expect("its own");
        let _ = known.undo(Path::new("/memory"), false);
        assert!(!root.join("x").exists());
    }
}
