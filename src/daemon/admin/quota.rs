//! Guarantees: those of the configuration, overridden by those that administrators set.

use std::collections::BTreeMap;

use gshare_core::machine::Event;
use gshare_core::sched::fair::unpackable_quotas;
use gshare_core::{ClaimId, Party, Quota, Share};
use gshare_proto::{AdminDone, ErrorCode, QuotaView, Reply, WireError};

use crate::daemon::command::{Command, RuleCommand};
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::{ClaimRecord, Journal, JournalError, Store};
use crate::daemon::order::{Act, Order};
use crate::daemon::settings::Settings;
use crate::daemon::world::World;
use crate::identity::unknown;

/// Larger than any machine, in thousandths of a GPU.
const MOST_GPUS: u32 = 64_000;

/// Events for the core after guarantees have changed; claims may count for other parties then.
pub(crate) fn anew(world: &World<'_>) -> Vec<Event> {
    // Guarantees that do not fit together do not stop the service from starting.
    if let Some(why) = unpackable_quotas(cards(world.gpus), &world.config.quotas()) {
        tracing::warn!("{why}");
    }
    let held = world.claims.iter().map(|(id, l)| (*id, &l.record));
    let waiting = world.claims.waiting.iter().map(|(id, a)| (*id, &a.record));
    let parties = (held.chain(waiting)).map(|(id, record)| parties(world, id, record));
    parties
        .chain([Event::Quotas(world.config.quotas())])
        .collect()
}

/// The parties that a claim counts for; for the core.
pub(crate) fn parties(world: &World<'_>, id: ClaimId, record: &ClaimRecord) -> Event {
    let parties = parties_of(world, record.uid, &record.project);
    Event::Parties { id, parties }
}

/// The parties that a user's claim for a project counts for.
pub(crate) fn parties_of(world: &World<'_>, uid: u32, project: &str) -> Vec<Party> {
    let mut parties = vec![
        Party::User(world.host.names.user(uid)),
        Party::Project(project.to_owned()),
    ];
    // Look up groups with a guarantee only: the lookup is slow.
    let named = |q: &Quota| match &q.party {
        Party::Group(name) => Some(name.clone()),
        _ => None,
    };
    let groups: Vec<String> = world.config.quotas().iter().filter_map(named).collect();
    if !groups.is_empty() {
        let of = world.host.names.account(uid).group_names().into_iter();
        parties.extend(of.filter(|g| groups.contains(g)).map(Party::Group));
    }
    parties
}

/// `1.5 guaranteed, weight 2, at most 3`.
fn text(quota: &Quota) -> String {
    let parts = [
        quota.gpus.map(|g| format!("{} guaranteed", g.short())),
        quota
            .weight_milli
            .map(|w| format!("weight {}", Share::from_milli(w).short())),
        quota.max.map(|m| format!("at most {}", m.short())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// The flags of `gshare admin quota set` that give this guarantee.
fn flags(quota: &Quota) -> String {
    let flag = |name: &str, milli: Option<u32>| {
        milli.map(|m| format!(" --{name} {}", Share::from_milli(m).short()))
    };
    let parts = [
        flag("gpus", quota.gpus.map(Share::milli)),
        flag("weight", quota.weight_milli),
        flag("max", quota.max.map(Share::milli)),
    ];
    parts.into_iter().flatten().collect()
}

/// `gshare admin quota set`.
pub(super) fn set(world: &World<'_>, wanted: QuotaView) -> Result<Order, WireError> {
    let usage = |text: String| WireError::new(ErrorCode::Usage, text);
    let party: Party = wanted.party.parse().map_err(|e| usage(format!("{e}")))?;
    let too_much = |milli: Option<u32>| milli.is_some_and(|m| m > MOST_GPUS);
    if too_much(wanted.gpus_milli) || too_much(wanted.max_milli) {
        return Err(usage("a quota is at most 64 GPUs".to_owned()));
    }
    if wanted.weight_milli == Some(0) {
        return Err(usage(
            "with weight 0, claims would never start; give a weight above 0".to_owned(),
        ));
    }
    let quota = Quota {
        party: party.clone(),
        gpus: wanted.gpus_milli.map(Share::from_milli),
        weight_milli: wanted.weight_milli,
        max: wanted.max_milli.map(Share::from_milli),
    };
    if quota.gpus.is_none() && quota.weight_milli.is_none() && quota.max.is_none() {
        return Err(usage("a quota needs --gpus, --weight or --max".to_owned()));
    }
    if let (Some(gpus), Some(max)) = (quota.gpus, quota.max)
        && gpus > max
    {
        return Err(usage(format!(
            "the guarantee ({} GPUs) exceeds the maximum ({} GPUs)",
            gpus.short(),
            max.short()
        )));
    }
    let before = world.config.in_force(&party);
    let act = Act {
        action: "quota set",
        target: party.to_string(),
        before: before.as_ref().map_or_else(|| "none".to_owned(), text),
        after: text(&quota),
        reason: None,
    };
    let undo = match world.config.set_quotas.get(&party) {
        Some(old) => format!("gshare admin quota set {party}{}", flags(old)),
        None => format!("gshare admin quota remove {party}"),
    };
    let mut message = format!("{party}: {}", text(&quota));
    Ok(Order {
        acts: vec![act],
        stores: vec![Store::Quota(quota.clone())],
        then: vec![Command::Rules(RuleCommand::SetQuota(
            party.clone(),
            Some(quota),
        ))],
        ..Order::answered(move |world, _| {
            if let Some(why) = unpackable_quotas(cards(world.gpus), &world.config.quotas()) {
                message.push_str(&format!("\nnote: {why}"));
            }
            if let Some(warning) = unknown(&party) {
                message.push_str(&format!("\n{warning}"));
            }
            let undo = Some(undo);
            AdminDone { message, undo }
        })
    })
}

/// `gshare admin quota remove`.
pub(super) fn remove(world: &World<'_>, word: &str) -> Result<Order, WireError> {
    let usage = |text: String| WireError::new(ErrorCode::Usage, text);
    let party: Party = word.parse().map_err(|e| usage(format!("{e}")))?;
    let Some(old) = world.config.set_quotas.get(&party) else {
        let error = usage(format!("no administrator has set a quota of {party}"));
        let configured = world.config.in_force(&party).is_some();
        return Err(if configured {
            error.with_hint("this quota comes from gshare.toml: remove it there, under [quotas]")
        } else {
            error.with_hint("gshare admin quota list shows all quotas")
        });
    };
    let configured = world.config.quotas.iter().find(|q| q.party == party);
    let after = configured.map_or_else(|| "none".to_owned(), text);
    let message = format!("{party}: {after}");
    let undo = format!("gshare admin quota set {party}{}", flags(old));
    let act = Act {
        action: "quota remove",
        target: party.to_string(),
        before: text(old),
        after,
        reason: None,
    };
    Ok(Order {
        acts: vec![act],
        stores: vec![Store::NoQuota(party.to_string())],
        then: vec![Command::Rules(RuleCommand::SetQuota(party, None))],
        ..Order::saying(message, Some(undo))
    })
}

impl Settings {
    /// Sets the guarantee of a party; `None` removes it.
    pub(crate) fn set_quota(&mut self, party: Party, quota: Option<Quota>) {
        match quota {
            Some(quota) => drop(self.set_quotas.insert(party, quota)),
            None => drop(self.set_quotas.remove(&party)),
        }
    }

    /// Reads guarantees from the journal.
    pub(crate) fn load_quotas(&mut self, journal: &Journal) -> Result<(), JournalError> {
        for quota in journal.quotas()? {
            match quota {
                Ok(quota) => {
                    self.set_quotas.insert(quota.party.clone(), quota);
                }
                Err(error) => tracing::error!("a quota in the journal was ignored: {error}"),
            }
        }
        Ok(())
    }

    fn in_force(&self, party: &Party) -> Option<Quota> {
        self.quotas().into_iter().find(|q| q.party == *party)
    }

    /// For `gshare admin quota list`.
    pub(crate) fn quota_list(&self) -> Reply {
        let view = |q: Quota| QuotaView {
            party: q.party.to_string().into(),
            gpus_milli: q.gpus.map(Share::milli),
            weight_milli: q.weight_milli,
            max_milli: q.max.map(Share::milli),
            from_config: !self.set_quotas.contains_key(&q.party),
        };
        Reply::Quotas {
            quotas: self.quotas().into_iter().map(view).collect(),
        }
    }

    /// All guarantees in force: an administrator's replaces the configuration's.
    pub(crate) fn quotas(&self) -> Vec<Quota> {
        let mut all: BTreeMap<Party, Quota> = self
            .quotas
            .iter()
            .map(|q| (q.party.clone(), q.clone()))
            .collect();
        all.extend(self.set_quotas.iter().map(|(p, q)| (p.clone(), q.clone())));
        all.into_values().collect()
    }
}

/// Number of GPUs; a divided GPU counts once.
fn cards(gpus: &Gpus) -> usize {
    gpus.iter().filter(|g| g.parent.is_none()).count()
}
