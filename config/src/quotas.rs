//! Guarantees in the file: `"user:ada" = { gpus = 1.5, weight = 2.0, max = 3.0 }`.

use std::collections::BTreeMap;
use std::path::Path;

use gshare_core::Share;
use gshare_core::quota::{Party, Quota};
use gshare_core::sched::fair::unpackable_quotas;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::form::{Form, Optional, QuotaGpus, Weight};
use crate::problem::Problem;

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Keys {
    #[serde(
        with = "Optional::<QuotaGpus>",
        skip_serializing_if = "Option::is_none"
    )]
    gpus: Option<Share>,
    #[serde(with = "Optional::<Weight>", skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(
        with = "Optional::<QuotaGpus>",
        skip_serializing_if = "Option::is_none"
    )]
    max: Option<Share>,
}

/// A party as the key of a table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name(Party);

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hint = |e| format!("{e}\nwrite for example \"user:ada\" = {{ max = 2.0 }}");
        let party = String::deserialize(deserializer)?.parse();
        party.map(Self).map_err(|e| D::Error::custom(hint(e)))
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Quota>, D::Error> {
    let quota = |(Name(party), keys): (Name, Keys)| Quota {
        party,
        gpus: keys.gpus,
        weight_milli: keys.weight,
        max: keys.max,
    };
    let table = BTreeMap::<Name, Keys>::deserialize(from)?;
    Ok(table.into_iter().map(quota).collect())
}

pub(crate) fn serialize<S: Serializer>(quotas: &[Quota], out: S) -> Result<S::Ok, S::Error> {
    let keys = |quota: &Quota| Keys {
        gpus: quota.gpus,
        weight: quota.weight_milli,
        max: quota.max,
    };
    out.collect_map(quotas.iter().map(|q| (Name(q.party.clone()), keys(q))))
}

/// Why the guarantees of a file do not fit together on `gpus` GPUs, with the place in the file.
#[must_use]
pub fn unpackable(text: &str, file: &Path, quotas: &[Quota], gpus: usize) -> Option<Problem> {
    let why = unpackable_quotas(gpus, quotas)?;
    let name = why.party.to_string();
    let at = text.find(&name).unwrap_or(0);
    let span = at..at + if at > 0 { name.len() } else { 0 };
    let expected = if why.most > Share::ZERO {
        format!(
            "lower this guarantee to at most {}, or lower another one",
            why.most.as_f64()
        )
    } else {
        "lower another guarantee".to_owned()
    };
    Some(Problem::at(
        file,
        text,
        span,
        why.to_string(),
        Some(expected),
    ))
}
