//! Quotas in the file: `"user:ada" = { gpus = 1.5, weight = 2.0, max = 3.0 }`.

use std::path::Path;

use gshare_core::Share;
use gshare_core::quota::{Party, Quota};
use toml::de::{DeTable, DeValue};

use gshare_core::sched::fair::unpackable_quotas;

use crate::problem::Problem;
use crate::read::{self, Reader};

/// All entries, by party.
pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Vec<Quota> {
    let mut quotas: Vec<Quota> = Vec::new();
    reader.section(root, "quotas").named("PARTY", |name, s| {
        let gpus = s.optional("gpus", milli);
        let weight = s.optional("weight", milli);
        let max = s.optional("max", milli);
        if !s.exists() {
            return;
        }
        let party = match name.parse::<Party>() {
            Ok(party) => party,
            Err(error) => {
                let how = "write for example \"user:ada\" = { max = 2.0 }".to_owned();
                s.complain("", error.to_string(), Some(how));
                return;
            }
        };
        if !s.is_sound() {
            return;
        }
        if gpus.is_none() && weight.is_none() && max.is_none() {
            let how = "add gpus, weight or max".to_owned();
            s.complain("", format!("the quota of {party} says nothing"), Some(how));
        }
        if let (Some(gpus), Some(max)) = (gpus, max)
            && gpus > max
        {
            s.complain(
                "max",
                format!("{party} is guaranteed more than it may hold"),
                None,
            );
        }
        quotas.push(Quota {
            party,
            gpus: gpus.map(Share::from_milli),
            weight_milli: weight,
            max: max.map(Share::from_milli),
        });
    });
    quotas.sort_by(|a, b| a.party.cmp(&b.party));
    quotas
}

/// What keeps the guarantees of a file from being had at the same time on `gpus` GPUs, at its place in the file.
#[must_use]
pub fn unpackable(text: &str, file: &Path, quotas: &[Quota], gpus: usize) -> Option<Problem> {
    let why = unpackable_quotas(gpus, quotas)?;
    let name = why.party.to_string();
    let at = text.find(&name).unwrap_or(0);
    let span = at..at + if at > 0 { name.len() } else { 0 };
    let expected = if why.most > Share::ZERO {
        format!("at most {} for it, or less for another", why.most.as_f64())
    } else {
        "guarantee less to another".to_owned()
    };
    Some(Problem::at(
        file,
        text,
        span,
        why.to_string(),
        Some(expected),
    ))
}

/// A number of GPUs, or a weight, in thousandths.
fn milli(value: &DeValue<'_>) -> Result<u32, String> {
    crate::value::milli(&read::number_text(value)?)
}
