//! From the wire to the core and back: sizes, projects, GPU names.

use std::time::Duration;

use gshare_config::Wait as DefaultWait;
use gshare_core::{Bytes, Class, ModeWish, Request, Share, Size};
use gshare_enforcer::proc;
use gshare_proto::{ClaimSpec, CommandLine, ErrorCode, SignalSpec, Wait, WireError, messages};
use nix::sys::signal::Signal;

use super::gpu::Gpus;
use super::journal::{ClaimRecord, OriginRecord, TermsRecord};
use super::peer::Peer;
use super::world::World;
use crate::figures;

/// Longest time limit, and the longest extension at once, in seconds: a year.
pub(crate) const MOST_S: u64 = 366 * 86_400;

/// Beginning of the path of a GPU's device node, the name that Slurm uses.
const NODE: &str = "/dev/nvidia";

/// Smallest memory of a claim.
const LEAST_MEM: u64 = 1 << 20;

/// Longest lead time of a signal; Slurm has the same limit.
const LONGEST_S: u32 = 65_535;

fn usage(message: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::Usage, message)
}

/// Checks a client's request and fills in the defaults.
pub(crate) fn request(
    world: &World<'_>,
    peer: &Peer,
    spec: &ClaimSpec,
) -> Result<(Request, Option<Duration>, ClaimRecord), WireError> {
    spec.signal.map_or(Ok(()), check_signal)?;
    let defaults = &world.config.defaults;
    let class: Class = match &spec.class {
        Some(word) => word.parse().map_err(usage)?,
        None => defaults.class,
    };
    let alone = spec.mem.filter(|_| spec.gpus_milli.is_none());
    let usual = match class {
        Class::Interactive => defaults.size_interactive,
        _ => defaults.size_command,
    };
    let size = match (spec.gpus_milli, alone) {
        (Some(milli), _) => Share::from_milli(milli),
        (None, None) => usual,
        (None, Some(_)) => usual.min(Share::ONE),
    };
    if size == Share::ZERO {
        return Err(usage("-g 0 claims nothing").with_hint("for example -g 0.25"));
    }
    let wrong = |e: gshare_core::RequestError| usage(e.to_string());
    let sm_limit = spec
        .sm_limit_milli
        .map_or(defaults.sm_limit, Share::from_milli);
    let size = match spec.gpu_count {
        None => Size::from_share(size).map_err(wrong)?,
        Some(gpus) if (1..=64).contains(&gpus) && size <= Share::ONE => Size { gpus, each: size },
        Some(_) => return Err(usage("parts of several GPUs are written -g 2x0.5")),
    };
    let mut request = Request::of_size(size, sm_limit, class);
    if let Some(mem) = alone {
        // With memory alone, the GPU's memory determines the fraction of a GPU.
        let gpus = world.machine.ledger().gpus().iter();
        let whole = gpus.filter(|g| g.of_a_gpu() == Share::ONE);
        let part = whole.map(|g| g.part(Bytes(mem))).max();
        request.share = part.unwrap_or(request.share);
        request.sm = None;
    }
    request.sm = spec.sm_milli.map(Share::from_milli).or(request.sm);
    // A limit that was asked for must hold; the default limit gives way to a larger size.
    request.sm_limit = if spec.sm_limit_milli.is_some() {
        sm_limit
    } else {
        sm_limit.max(request.sm.unwrap_or(request.share.min(Share::ONE)))
    };
    request.uid = peer.uid;
    request.mem = spec.mem.map(Bytes);
    request.mem_limit = spec.mem_limit.map(Bytes);
    request.mem_limit_share = spec.kernel.is_some().then_some(defaults.mem_limit_notebook);
    request.lease = spec.lease_s.map(Duration::from_secs);
    if spec.lease_s.is_some_and(|s| !(1..=MOST_S).contains(&s)) {
        return Err(
            usage("a time limit (-t) is at least a second and at most a year")
                .with_hint("for example -t 8h"),
        );
    }
    if spec.mem.is_some_and(|bytes| bytes < LEAST_MEM) {
        return Err(usage("--gpu-mem is at least 1 MiB").with_hint("for example --gpu-mem 4G"));
    }
    request.check().map_err(wrong)?;
    request.only_gpus = world.gpus.gpu_ids("--gpu-ids ", &spec.gpu_ids)?;
    bind(world, spec, &mut request)?;
    let patience = match spec.wait {
        Wait::No => Some(Duration::ZERO),
        Wait::Seconds(s) => Some(Duration::from_secs(s.min(MOST_S))),
        Wait::Forever => None,
        Wait::Default => match defaults.wait {
            DefaultWait::Forever => None,
            DefaultWait::No => Some(Duration::ZERO),
            DefaultWait::For(d) => Some(d),
        },
    };
    let process = peer.process.ok_or_else(|| {
        WireError::new(ErrorCode::Internal, messages::unknown_peer())
            .with_hint("run gshare outside the container: the service does not see processes in another pid namespace")
    })?;
    let named = request.only_gpus.iter();
    let here = named.map(|g| *g as usize).filter(|g| *g < world.gpus.len());
    let record = ClaimRecord {
        uid: peer.uid,
        name: spec
            .name
            .clone()
            .map(String::from)
            .filter(|n| !n.is_empty()),
        project: project(world, peer.uid, spec.project.as_deref())?,
        class: class.name().to_owned(),
        command: spec.command.to_vec().into(),
        // A held claim without a command has no process.
        process: (!spec.hold || !spec.command.is_empty()).then_some(process),
        terms: TermsRecord {
            hold: spec.hold,
            ends_ms: None,
            only: here.map(|g| world.gpus.lasting_name(g)).collect(),
            mode: request.mode.map(|m| m.name().to_owned()),
            no_move: !request.movable,
            requeue: spec.requeue,
            signal: spec.signal,
            no_library: spec.no_library,
            auto: spec.auto,
            lazy: None,
        },
        origin: OriginRecord {
            kernel: spec.kernel.clone().map(Into::into),
            ..OriginRecord::default()
        },
        ..ClaimRecord::default()
    };
    Ok((request, patience, record))
}

/// Why a signal cannot be requested.
fn check_signal(spec: SignalSpec) -> Result<(), WireError> {
    let known = Signal::try_from(spec.number).is_ok();
    (known && (1..=LONGEST_S).contains(&spec.before_s))
        .then_some(())
        .ok_or_else(|| {
            let text = format!(
                "--signal: signal {} cannot be sent {} s before the end (1 to {LONGEST_S} s)",
                spec.number, spec.before_s
            );
            WireError::new(ErrorCode::Usage, text)
        })
}

/// Binds a request to GPUs of a model and mode, and sets whether the claim may be moved.
fn bind(world: &World<'_>, spec: &ClaimSpec, request: &mut Request) -> Result<(), WireError> {
    request.movable = spec.movable.unwrap_or(true);
    if let Some(word) = &spec.mode {
        let mode: ModeWish = word.parse().map_err(usage)?;
        request.mode = Some(mode);
        let gpus = world.machine.ledger().gpus();
        if !gpus.iter().any(|g| mode.possible(g.sharing)) {
            return Err(usage(format!("no GPU here offers mode `{word}`"))
                .with_hint("gshare status shows the mode of each GPU"));
        }
    }
    if spec.models.is_empty() {
        return Ok(());
    }
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let wanted: Vec<String> = spec.models.iter().map(|m| plain(m)).collect();
    let fits = |g: &usize| {
        let model = plain(&world.gpus[*g].model);
        wanted.iter().any(|w| !w.is_empty() && model.contains(w))
    };
    let found: Vec<u32> = (0..world.gpus.len())
        .filter(fits)
        .filter_map(|g| u32::try_from(g).ok())
        .filter(|g| request.only_gpus.is_empty() || request.only_gpus.contains(g))
        .collect();
    if found.is_empty() {
        let mut known: Vec<String> = (world.gpus.iter())
            .map(|g| figures::short_name(&g.model))
            .collect();
        known.sort();
        known.dedup();
        let models: Vec<&str> = spec.models.iter().map(AsRef::as_ref).collect();
        let wanted = clean(&models.join(","), 64);
        return Err(
            usage(format!("none of the GPUs you may use is a `{wanted}`"))
                .with_hint(format!("the models of this machine: {}", known.join(", "))),
        );
    }
    request.only_gpus = found;
    Ok(())
}

/// Command line of a process as a claim records it.
pub(crate) fn command_line(pid: i32) -> Vec<String> {
    let words = proc::cmdline(pid).unwrap_or_default();
    CommandLine::of(words.iter().map(|w| w.to_string_lossy())).into_words()
}

/// `[trainer] podman run ...` if containers run in it.
pub(super) fn what_in(containers: &[String], name: Option<&str>, command: &[String]) -> String {
    let what = figures::what(name, command);
    if containers.is_empty() {
        what
    } else {
        format!("[{}] {what}", containers.join(", "))
    }
}

/// A user's text for other users' terminals: limited in length, without control characters.
pub(crate) fn clean(text: &str, most: usize) -> String {
    figures::printable(text).take(most).collect()
}

/// The project that a claim counts for: the named one if its owner may use it, otherwise the owner's primary group.
pub(crate) fn project(
    world: &World<'_>,
    uid: u32,
    wanted: Option<&str>,
) -> Result<String, WireError> {
    let (account, user) = (world.host.names.account(uid), world.host.names.user(uid));
    let Some(wanted) = wanted else {
        return Ok(account.primary().map_or(user, str::to_owned));
    };
    if Some(wanted) == account.primary() {
        return Ok(wanted.to_owned());
    }
    let groups = account.group_names();
    let may = |p: &gshare_config::Project| {
        p.users.contains(&user) || p.groups.iter().any(|g| groups.contains(g))
    };
    match world.config.projects.get(wanted) {
        Some(project) if may(project) => Ok(wanted.to_owned()),
        Some(_) => Err(WireError::new(
            ErrorCode::NotPermitted,
            format!("{user} is not in project `{wanted}`"),
        )
        .with_hint("ask the administrator, who lists a project's users and groups in the config")),
        None => {
            let known: Vec<&str> = world
                .config
                .projects
                .iter()
                .filter(|(_, p)| may(p))
                .map(|(n, _)| n.as_str())
                .collect();
            let hint = if known.is_empty() {
                "no project is declared for you; leave --project out".to_owned()
            } else {
                format!("your projects: {}", known.join(", "))
            };
            Err(usage(format!("there is no project `{wanted}`")).with_hint(hint))
        }
    }
}

impl Gpus {
    /// GPUs by index, UUID or unique prefix of one, or device node; `lead` precedes an unknown word in the error.
    pub(crate) fn gpu_ids(
        &self,
        lead: &str,
        words: &[impl AsRef<str>],
    ) -> Result<Vec<u32>, WireError> {
        let mut found = Vec::new();
        for word in words.iter().map(AsRef::as_ref) {
            let matches: Vec<usize> = match word.parse::<usize>() {
                Ok(index) if index < self.len() => vec![index],
                Ok(_) => Vec::new(),
                Err(_) if word.starts_with(NODE) => (0..self.len())
                    .filter(|&g| {
                        self[g]
                            .minor
                            .is_some_and(|m| word[NODE.len()..] == m.to_string())
                    })
                    .collect(),
                Err(_) => (0..self.len())
                    .filter(|&g| word.len() >= 5 && self[g].uuid.starts_with(word))
                    .collect(),
            };
            let [index] = matches.as_slice() else {
                let what = match matches.is_empty() {
                    true => messages::no_gpu(word),
                    false => messages::several_gpus(word),
                };
                return Err(usage(format!("{lead}{word}: {what}")).with_hint(format!(
                    "GPUs 0 to {}, or a UUID, as gshare status shows them",
                    self.len() - 1
                )));
            };
            found.push(u32::try_from(*index).unwrap_or(u32::MAX));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_users_cannot_carry_escapes_to_other_terminals() {
        assert_eq!(clean("a\x1b[31mb\nc", 100), "a [31mb c");
        assert_eq!(clean("abcdef", 3), "abc");
        // Characters that reverse the text or imitate others are removed too.
        assert_eq!(clean("a\u{202e}b\u{200b}c\u{9b}2Jd", 100), "a b c 2Jd");
    }
}
