//! What administrators do to others; each asks first.

use gshare_proto::{AdminCall, Call, GpuView};

use super::{NO_ROW, called, confirm, gone};
use crate::model::{Model, RowKey, Tone};

/// Whether the viewer is an administrator.
pub(crate) fn admin(model: &Model) -> Result<(), String> {
    model.service()?;
    if model.viewer.admin {
        return Ok(());
    }
    Err("that is for administrators: start the screen as root (sudo gshare)".to_owned())
}

/// Title and text of a question, what is said while it is done, and the call; or why there is none.
type Asking = Result<(String, String, String, AdminCall), String>;

pub(crate) fn put(model: &mut Model, question: Asking) {
    match question {
        Ok((title, text, doing, call)) => confirm(model, title, text, doing, Call::Admin(call)),
        Err(why) => model.say(Tone::Bad, why),
    }
}

pub(crate) fn kill(model: &Model) -> Asking {
    let claim = match model.subject() {
        None => return Err(NO_ROW.to_owned()),
        Some(RowKey::Claim(id)) => model.claim(id).ok_or_else(gone)?,
        Some(RowKey::Process(pid, _)) => model
            .claim_of(*pid)
            .ok_or_else(|| format!("process {pid} has no claim; end it with kill"))?,
        Some(_) => return Err("choose a claim first".to_owned()),
    };
    let id = &claim.id;
    if claim.adopted {
        return Err(format!(
            "{id} is a process without a claim; end it with kill"
        ));
    }
    let members = match claim.members.len() {
        0 => "No process is in it: it is released.".to_owned(),
        1 => "Its process gets SIGTERM, and SIGKILL ten seconds later.".to_owned(),
        n => format!("All of its {n} processes get SIGTERM, and SIGKILL ten seconds later."),
    };
    let text = format!("Kill {}? {members}", called(claim, true));
    let call = AdminCall::Kill {
        ids: vec![id.clone()].into(),
        user: None,
        gpu: None,
        grace_ms: None,
        reason: None,
    };
    Ok((format!("Kill {id}"), text, format!("killing {id}"), call))
}

/// Whether the page is of a claim or a process that the viewer may end.
pub(crate) fn can_kill(model: &Model) -> Result<(), String> {
    admin(model)?;
    kill(model).map(|_| ())
}

/// Whether the page is of a GPU and the viewer an administrator.
pub(crate) fn can_drain(model: &Model) -> Result<(), String> {
    admin(model)?;
    chosen_gpu(model).map(|_| ())
}

fn chosen_gpu(model: &Model) -> Result<&GpuView, String> {
    let Some(RowKey::Gpu(index)) = model.subject() else {
        return Err("choose a GPU first: on the Overview (Right) or on Health (5)".to_owned());
    };
    let mut gpus = model.snapshot.iter().flat_map(|s| &s.gpus);
    gpus.find(|g| g.index == *index)
        .ok_or_else(|| format!("GPU {index} is gone"))
}

pub(crate) fn drain(model: &Model) -> Asking {
    let gpu = chosen_gpu(model)?;
    let (n, gpus) = (gpu.index, vec![gpu.index.to_string()]);
    Ok(if gpu.drain.is_some() {
        (
            format!("Undrain GPU {n}"),
            format!("Let claims start on GPU {n} again?"),
            format!("opening GPU {n}"),
            AdminCall::Undrain { gpus: gpus.into() },
        )
    } else {
        (
            format!("Drain GPU {n}"),
            format!("Start no new claims on GPU {n}? Its claims keep running."),
            format!("draining GPU {n}"),
            AdminCall::Drain {
                gpus: gpus.into(),
                reason: None,
            },
        )
    })
}

pub(crate) fn mode(model: &Model) -> Asking {
    let gpu = chosen_gpu(model)?;
    let n = gpu.index;
    let goal = gpu.mode_wanted.as_deref().unwrap_or(&gpu.mode);
    let (mode, words) = if goal == "mps" {
        ("timeslice", "in turns (time slices)")
    } else {
        ("mps", "side by side (MPS)")
    };
    Ok((
        format!("GPU {n}: {mode}"),
        format!(
            "Let claims share GPU {n} {words}? It takes no new claims until those on it have ended, \
             then the mode changes."
        ),
        format!("changing the mode of GPU {n}"),
        AdminCall::Mode {
            gpu: n.to_string().into(),
            mode: mode.to_owned().into(),
            when_empty: true,
        },
    ))
}
