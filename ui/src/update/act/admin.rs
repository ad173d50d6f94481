//! Administrators' actions on others' claims; each asks first.

use gshare_proto::{AdminCall, Call, GpuView};

use super::{Asking, called, subject};
use crate::model::{Model, Question, RowKey};

fn admin(model: &Model) -> Result<(), String> {
    model.service()?;
    if model.viewer.admin {
        return Ok(());
    }
    Err("that is for administrators: start the screen as root (sudo gshare)".to_owned())
}

fn ask(title: String, text: String, call: AdminCall) -> Asking {
    let call = Call::Admin(call);
    Ok(Question { title, text, call })
}

pub(crate) fn kill(model: &Model) -> Asking {
    admin(model)?;
    let claim = subject(model)?;
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
    ask(format!("Kill {id}"), text, call)
}

fn chosen_gpu(model: &Model) -> Result<&GpuView, String> {
    admin(model)?;
    let Some(RowKey::Gpu(index)) = model.subject() else {
        return Err("choose a GPU first: on the Overview (Right) or on Health (5)".to_owned());
    };
    let gpu = model.gpu(*index);
    gpu.ok_or_else(|| format!("GPU {index} is gone"))
}

pub(crate) fn drain(model: &Model) -> Asking {
    let gpu = chosen_gpu(model)?;
    let (n, gpus) = (gpu.index, vec![gpu.index.to_string()].into());
    if gpu.drain.is_some() {
        let text = format!("Let claims start on GPU {n} again?");
        let call = AdminCall::Undrain { gpus };
        return ask(format!("Undrain GPU {n}"), text, call);
    }
    let text = format!("Start no new claims on GPU {n}? Its claims keep running.");
    let (reason, title) = (None, format!("Drain GPU {n}"));
    ask(title, text, AdminCall::Drain { gpus, reason })
}

pub(crate) fn mode(model: &Model) -> Asking {
    let gpu = chosen_gpu(model)?;
    let n = gpu.index;
    let goal = gpu.mode_wanted.as_deref().unwrap_or(&gpu.mode);
    let (mode, words) = match goal {
        "mps" => ("timeslice", "in turns (time slices)"),
        _ => ("mps", "side by side (MPS)"),
    };
    let text = format!(
        "Let claims share GPU {n} {words}? It takes no new claims until those on it have ended, then the mode changes."
    );
    let call = AdminCall::Mode {
        gpu: n.to_string().into(),
        mode: mode.to_owned().into(),
        when_empty: true,
    };
    ask(format!("GPU {n}: {mode}"), text, call)
}
