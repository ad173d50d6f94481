//! `gshare claim`, `shell` and `join`: get a grant, then execute the command.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use gshare_config::{ProjectDefaults, ProjectFile};
use gshare_core::{Class, Share, Size};
use gshare_proto::{Call, ClaimSpec, Client, ClientError, Granted, Reply, SuggestSpec, Wait};

use super::args::sizes::PartArgs;
use super::args::suggest::Wanted;
use super::args::{ClaimArgs, JoinArgs, ShellArgs, SizeArgs};
use super::failure::{self, Failure};
use super::phases::{Phases, now_ns};
use super::waiting::Waiting;
use super::{Outcome, connect, container, dry_run, exec, nodes, out, suggest, supervise};

/// Maximum bytes of a command line for display; the rest is cut.
const SHOWN_COMMAND: usize = 16 * 1024;

pub(crate) fn claim(
    socket: Option<&Path>,
    args: &ClaimArgs,
    child: Option<u64>,
    started_ns: u64,
) -> Outcome {
    if let Some(host) = &args.on {
        return nodes::on(host);
    }
    check_foreign(&args.size)?;
    if let Some(program) = args.command.first() {
        exec::look_for(program)?;
        if args.short {
            return Err(Failure::new(
                failure::USAGE,
                "--short prints only the id of the claim, so it cannot be used with a command",
            )
            .with_hint("drop --short, or the command"));
        }
    }
    let defaults = project_defaults(args.size.quiet)?;
    let mut spec = spec(&args.size, &defaults);
    spec.class = args
        .size
        .class
        .or(defaults.class)
        .map(|c| c.name().to_owned())
        .map(Into::into);
    spec.command = shown_command(&args.command).into();
    // A claim without a command ends only by its owner.
    spec.hold = args.hold || args.command.is_empty();
    spec.lazy = args.lazy;
    spec.no_library = args.no_library;
    if spec.auto && spec.command.is_empty() {
        return Err(Failure::new(
            failure::USAGE,
            "-g auto needs a command: earlier runs of the command set the size",
        )
        .with_hint("gshare claim -g auto -- python3 train.py"));
    }
    if args.dry_run && spec.auto {
        let mut client = connect::connect(socket)?;
        let asked = SuggestSpec {
            command: spec.command.clone(),
            class: spec.class.clone(),
            ..SuggestSpec::default()
        };
        if let Some(said) = suggest::ask(&mut client, asked)?.suggestions.first() {
            spec.mem = Some(said.mem);
            spec.sm_milli = said.sm.map(|sm| (sm * 1000.0).round() as u32);
        }
    }
    if args.dry_run {
        return dry_run::run(socket, spec, args.json);
    }
    spec.requeue = args.requeue;
    spec.signal = args.signal;
    if spec.signal.is_some() && spec.lease_s.is_none() && !spec.requeue {
        let text = "--signal needs a time limit or --requeue: it sends a signal before one of them ends the command";
        return Err(Failure::new(failure::USAGE, text).with_hint("add -t 2h, or --requeue"));
    }
    let parent = spec.lease_s.is_some() || spec.requeue;
    if parent && !args.command.is_empty() && child.is_none() && supervise::wanted() {
        return supervise::run(socket);
    }
    let mut phases = Phases {
        main_ns: started_ns,
        parsed_ns: now_ns(),
        ..Phases::default()
    };
    supervise::as_child(child);
    if spec.lazy && !spec.auto {
        dry_run::not_in_vain(socket, &spec)?;
    }
    let mut granted = request(socket, spec, args.size.quiet, &mut phases, own)?;
    if args.command.is_empty() {
        return report(args, &granted);
    }
    if args.no_library {
        exec::without_library(&mut granted);
    }
    if args.json {
        out::note(out::json_text(&granted, false)?.trim_end());
    } else if !args.size.quiet {
        out::note(&granted.message);
    }
    let command = container::placed(socket, &args.command, &granted, args.size.quiet)?;
    become_command(&command, &granted, args.size.phases.as_deref(), phases)
}

pub(crate) fn shell(
    socket: Option<&Path>,
    args: &ShellArgs,
    child: Option<u64>,
    started_ns: u64,
) -> Outcome {
    check_foreign(&args.size)?;
    let defaults = project_defaults(args.size.quiet)?;
    let mut spec = spec(&args.size, &defaults);
    // The class in the file is for the project's jobs; a shell is interactive.
    let class = args.size.class.unwrap_or(Class::Interactive);
    spec.class = Some(class.name().to_owned().into());
    let command = [exec::shell()];
    exec::look_for(&command[0])?;
    spec.command = shown_command(&command).into();
    if spec.lease_s.is_some() && child.is_none() && supervise::wanted() {
        return supervise::run(socket);
    }
    let mut phases = Phases {
        main_ns: started_ns,
        parsed_ns: now_ns(),
        ..Phases::default()
    };
    supervise::as_child(child);
    let granted = request(socket, spec, args.size.quiet, &mut phases, own)?;
    if !args.size.quiet {
        out::note(&granted.message);
    }
    become_command(&command, &granted, args.size.phases.as_deref(), phases)
}

pub(crate) fn join(socket: Option<&Path>, args: &JoinArgs) -> Outcome {
    let command = if args.command.is_empty() {
        vec![exec::shell()]
    } else {
        args.command.clone()
    };
    exec::look_for(&command[0])?;
    let call = Call::Join {
        id: args.id.clone().into(),
        parent: false,
    };
    let granted = granted(connect::connect(socket)?.call(&call)?)?;
    if !args.quiet {
        out::note(&granted.message);
    }
    let command = container::placed(socket, &command, &granted, args.quiet)?;
    Err(exec::exec(&command, &granted))
}

fn become_command(
    command: &[OsString],
    granted: &Granted,
    phases_file: Option<&Path>,
    mut phases: Phases,
) -> Outcome {
    if let Some(file) = phases_file {
        phases.service_us = granted.phases_us.to_vec();
        phases.exec_ns = now_ns();
        phases.append(file)?;
    }
    Err(exec::exec(command, granted))
}

/// Output for a claim without a command.
fn report(args: &ClaimArgs, granted: &Granted) -> Outcome {
    let id = &granted.id;
    if args.json {
        out::json(granted)?;
    } else if args.short || args.size.quiet {
        out::print(&format!("{id}\n"))?;
    } else {
        out::print(&format!("{}\n", granted.message))?;
        out::note(&format!(
            "use it: gshare join {id} -- CMD, or eval \"$(gshare env {id})\"; give it back: gshare release {id}"
        ));
    }
    Ok(0)
}

/// A claim of the caller's own.
fn own(spec: ClaimSpec) -> Call {
    Call::Claim(Box::new(spec))
}

/// Sends the claim and waits for its grant; asks again if the service restarts meanwhile.
pub(crate) fn request(
    socket: Option<&Path>,
    spec: ClaimSpec,
    quiet: bool,
    phases: &mut Phases,
    call: impl Fn(ClaimSpec) -> Call,
) -> Result<Granted, Failure> {
    let mut waiting = Waiting::new(quiet);
    let most = match spec.wait {
        Wait::Default | Wait::Forever => Duration::MAX,
        Wait::No => Duration::ZERO,
        Wait::Seconds(seconds) => Duration::from_secs(seconds),
    };
    let mut client = connect::patiently(socket, most, &waiting)?;
    phases.connected_ns = now_ns();
    let outcome = await_grant(&mut client, spec, socket, &mut waiting, call);
    waiting.end()?;
    phases.granted_ns = now_ns();
    outcome
}

fn await_grant(
    client: &mut Client,
    mut spec: ClaimSpec,
    socket: Option<&Path>,
    waiting: &mut Waiting,
    call: impl Fn(ClaimSpec) -> Call,
) -> Result<Granted, Failure> {
    let asked = Instant::now();
    let wait = spec.wait;
    let mut answered = asked;
    loop {
        if wait == Wait::No {
            client.set_read_timeout(Some(connect::PROMPT))?;
        }
        let mut next = client.call(&call(spec.clone()));
        while let Ok(Reply::Queued(queued)) = &next {
            answered = Instant::now();
            waiting.show(queued)?;
            next = client.next_reply();
        }
        let lost = match next {
            Ok(reply) => return granted(reply),
            Err(late) if wait == Wait::No && connect::is_late(&late) => {
                return Err(connect::silent(late));
            }
            Err(lost @ (ClientError::Closed | ClientError::Io(_))) => lost,
            Err(other) => return Err(other.into()),
        };
        // If the claim was granted at that moment, the same process finds it again.
        match connect::again(socket, answered + connect::patience(), waiting)? {
            Some(again) => *client = again,
            None => return Err(gone_for_good(&lost)),
        }
        if let Wait::Seconds(seconds) = wait {
            spec.wait = Wait::Seconds(seconds.saturating_sub(asked.elapsed().as_secs()));
        }
    }
}

/// The service went away and did not come back.
fn gone_for_good(lost: &ClientError) -> Failure {
    let waited = gshare_core::units::show_duration(connect::patience());
    let text = format!("{lost}, and no service answered within {waited}");
    Failure::new(failure::NO_SERVICE, text).with_hint(
        "running claims keep their GPUs. To check the service: gshare doctor. To wait longer for it: set \
         GSHARE_RECONNECT=5m in the environment",
    )
}

pub(crate) fn granted(reply: Reply) -> Result<Granted, Failure> {
    match reply {
        Reply::Granted(granted) => Ok(granted),
        other => Err(unexpected(&other)),
    }
}

/// The service's answer does not fit the request.
pub(crate) fn unexpected(reply: &Reply) -> Failure {
    let text = serde_json::to_string(reply).unwrap_or_default();
    let head: String = text.chars().take(120).collect();
    Failure::new(
        failure::INTERNAL,
        format!("unexpected reply from the gshare service: {head}"),
    )
}

/// The request by flags and the project's file; `None` leaves a value to the service.
fn spec(size: &SizeArgs, defaults: &ProjectDefaults) -> ClaimSpec {
    let wait = match (size.nonblock, size.wait) {
        (true, _) => Wait::No,
        (false, Some(wait)) => wait_of(wait),
        (false, None) => Wait::Default,
    };
    let auto = size.gpus == Some(Wanted::Auto);
    let gpus = match size.gpus {
        Some(wanted) => wanted.size(),
        None => defaults.gpus,
    };
    let part = size.part;
    // The project's size is a default, and gives way to the size of earlier runs.
    let part = PartArgs {
        gpu_mem: part.gpu_mem.or(defaults.gpu_mem.filter(|_| !auto)),
        gpu_mem_limit: part
            .gpu_mem_limit
            .or(defaults.gpu_mem_limit.filter(|_| !auto)),
        sm: part.sm.or(defaults.sm.filter(|_| !auto)),
        limit: part.limit.or(defaults.limit),
    };
    ClaimSpec {
        auto,
        name: size
            .name
            .clone()
            .or_else(|| defaults.name.clone())
            .map(Into::into),
        project: size
            .project
            .clone()
            .or_else(|| defaults.project.clone())
            .map(Into::into),
        lease_s: size.time.or(defaults.time).map(whole_seconds),
        gpu_ids: size.gpu_ids.clone().into(),
        models: size.model.clone().into(),
        mode: size.mode.map(|m| m.name().to_owned()).map(Into::into),
        movable: (size.movable || size.no_movable).then_some(!size.no_movable),
        wait,
        ..sized(gpus, &part)
    }
}

/// A request of this size.
pub(crate) fn sized(gpus: Option<Size>, part: &PartArgs) -> ClaimSpec {
    // The number of GPUs is sent if parts of several are requested.
    let several = |size: Size| size.as_share().is_none().then_some(size.gpus);
    ClaimSpec {
        gpus_milli: gpus.map(|g| g.as_share().unwrap_or(g.each).milli()),
        gpu_count: gpus.and_then(several),
        mem: part.gpu_mem.map(|b| b.0),
        mem_limit: part.gpu_mem_limit.map(|b| b.0),
        sm_milli: part.sm.map(Share::milli),
        sm_limit_milli: part.limit.map(Share::milli),
        ..ClaimSpec::default()
    }
}

/// Longest wait, for the service.
pub(crate) fn wait_of(wait: gshare_config::Wait) -> Wait {
    match wait {
        gshare_config::Wait::No => Wait::No,
        gshare_config::Wait::For(time) => Wait::Seconds(whole_seconds(time)),
        gshare_config::Wait::Forever => Wait::Forever,
    }
}

/// Whole seconds, at least one.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

pub(crate) fn shown_command(command: &[OsString]) -> Vec<String> {
    let mut left = SHOWN_COMMAND;
    let mut shown = Vec::new();
    for argument in command {
        let text = argument.to_string_lossy();
        let Some(rest) = left.checked_sub(text.len() + 1) else {
            shown.push("\u{2026}".to_owned());
            break;
        };
        left = rest;
        shown.push(text.into_owned());
    }
    shown
}

/// The nearest `.gshare.toml`; files of other users are named and not used.
fn project_defaults(quiet: bool) -> Result<ProjectDefaults, Failure> {
    let Ok(cwd) = std::env::current_dir() else {
        return Ok(ProjectDefaults::default());
    };
    let found = ProjectFile::find(&cwd)?;
    for ignored in &found.ignored {
        if !quiet {
            let (path, owner) = (ignored.path.display(), ignored.owner);
            out::note(&format!(
                "gshare: ignored {path}: it belongs to uid {owner}, not to you"
            ));
        }
    }
    Ok(found.defaults)
}

/// Flags of Slurm with another meaning here.
fn check_foreign(size: &SizeArgs) -> Result<(), Failure> {
    if let Some(gres) = &size.gres {
        let count = gres.rsplit(':').next().filter(|n| n.parse::<u32>().is_ok());
        let hint = if gres.starts_with("shard") {
            "to claim a part of a GPU: -g 0.25, or separately --gpu-mem 8G and --sm 30%".to_owned()
        } else {
            format!(
                "to claim whole GPUs: -g {}; for particular ones add --gpu-ids 0,2",
                count.unwrap_or("1")
            )
        };
        return Err(
            Failure::new(failure::USAGE, format!("--gres {gres} is Slurm's spelling"))
                .with_hint(hint),
        );
    }
    if let Some(mem) = &size.mem {
        return Err(Failure::new(
            failure::USAGE,
            format!(
                "--mem {mem} is Slurm's flag for host memory; gshare does not allocate host memory"
            ),
        )
        .with_hint(format!("for GPU memory: --gpu-mem {mem}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_sent_in_part() {
        let command: Vec<OsString> = std::iter::repeat_n("x".repeat(1000).into(), 100).collect();
        let shown = shown_command(&command);
        assert_eq!(shown.len(), 17);
        assert_eq!(shown.last().map(String::as_str), Some("\u{2026}"));
    }

    #[test]
    fn slurm_spellings_are_answered_with_the_flag_that_does_it() {
        for (gres, hint) in [("gpu:2", "-g 2"), ("gpu", "-g 1"), ("shard:2", "-g 0.25")] {
            let size = SizeArgs {
                gres: Some(gres.into()),
                ..SizeArgs::default()
            };
            let failure = check_foreign(&size).expect_err("refused");
            assert_eq!(failure.code, 64);
            assert!(failure.hint.is_some_and(|h| h.contains(hint)), "{gres}");
        }
    }
}
