//! `gshare doctor`: a row per mechanism, with what this machine and this service can do.

pub(crate) mod row;

use gshare_config::{LaunchCaps, Mode};
use gshare_core::units::many;
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::gpu::{Health, counters};
use gshare_proto::{Check, Grade, HealthView, messages};

use self::row::{GROUPS, check};
use super::admin::drain;
use super::effects::Effects;
use super::features::Features;
use super::history::History;
use super::journal::Journal;
use super::levers::facts;
use super::policy::overuse;
use super::release::released_text;
use super::viewer::Viewer;
use super::world::World;
use super::{conformance, mps, policy};
use gshare_enforcer::gpu::Observer;

/// The cgroup2 mount of a directory, if the first move after a pause is slow there (no `favordynmods`).
fn slow_mount(dir: &std::path::Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mut fields = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let mount = fields.find(|f| f.get(2) == Some(&"cgroup2") && dir.starts_with(f[1]))?;
    let favoured = mount
        .get(3)?
        .split(',')
        .any(|option| option == "favordynmods");
    (!favoured).then(|| mount[1].to_owned())
}

/// Why the memory limits of users' slices do not apply below a cgroup: the controller is on another hierarchy.
fn unbound_memory(dir: &std::path::Path) -> Option<String> {
    let mount = gshare_enforcer::cgroup::Mount::find().ok()?;
    let known = std::fs::read_to_string(mount.point.join("cgroup.controllers")).ok()?;
    let bound = known.split_whitespace().any(|name| name == "memory");
    (!bound && dir.starts_with(&mount.point)).then(|| {
        "MemoryMax and MemoryHigh of users' slices do not apply to claims: the memory controller is on cgroup v1 here"
            .to_owned()
    })
}

/// Rows under their headings, in the order of [`GROUPS`].
fn grouped(mut rows: Vec<Check>) -> Vec<Check> {
    let place = |c: &Check| GROUPS.iter().position(|(heading, _)| *heading == c.group);
    rows.sort_by_key(|c| place(c).unwrap_or(GROUPS.len()));
    rows
}

/// The administrators, and what they have closed.
fn administrators_row(world: &World<'_>) -> Check {
    let groups = &world.config.admin.groups;
    let who = if groups.is_empty() {
        "root".to_owned()
    } else {
        messages::only_groups(groups.join(", "))
    };
    let drained: Vec<String> = (world.gpus.present())
        .filter(|g| drain::drain_view(world.gpus, *g).is_some())
        .map(|g| g.to_string())
        .collect();
    let row = check(
        "administrators",
        "ok",
        format!("{who} may use gshare admin"),
    );
    if drained.is_empty() {
        return row;
    }
    Check {
        state: "limited".to_owned(),
        detail: format!("{}; drained GPUs: {}", row.detail, drained.join(", ")),
        fix: Some(format!("gshare admin undrain {}", drained.join(" "))),
        ..row
    }
}

fn cgroup_row(world: &World<'_>) -> Check {
    match (&world.host.fences.tree, &world.host.fences.no_tree) {
        (Some(tree), Some(why)) => Check {
            fix: Some("systemctl status dbus, then systemctl restart gshared".to_owned()),
            ..check(
                "cgroups",
                "limited",
                format!("claims are cgroups below {}, outside systemd's units: {why}", tree.dir().display()),
            )
        },
        (Some(tree), _) if tree.units().is_some() && unbound_memory(tree.dir()).is_some() => Check {
            fix: Some(
                "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line: cgroup v2 only".to_owned(),
            ),
            ..check(
                "cgroups",
                "limited",
                format!(
                    "claims are cgroups below {}, under the limits of their users' slices; {}",
                    tree.dir().display(),
                    unbound_memory(tree.dir()).unwrap_or_default()
                ),
            )
        },
        (Some(tree), _) => Check {
            fix: slow_mount(tree.dir()).map(|mount| {
                format!(
                    "optional, makes claims start about 10 ms faster after idle time, but every fork slightly slower: \
                     mount -o remount,favordynmods {mount}"
                )
            }),
            ..check(
                "cgroups",
                "ok",
                match tree.units() {
                    Some(_) => format!(
                        "claims are cgroups below {}, under the limits of their users' slices",
                        tree.dir().display()
                    ),
                    None => format!("claims are cgroups below {}", tree.dir().display()),
                },
            )
        },
        (None, why) => Check {
            fix: Some("run gshared as root, or in a delegated unit".to_owned()),
            ..check(
                "cgroups",
                "missing",
                why.clone().unwrap_or_else(|| "off".to_owned()),
            )
        },
    }
}

fn containers_row(world: &World<'_>) -> Check {
    let name = "containers";
    match super::container::containers_here(world.config, &world.host.fences) {
        Ok(how) => check(name, "ok", how),
        Err(why) => Check {
            fix: why
                .contains("installed")
                .then(|| "apt install podman runc".to_owned()),
            ..check(name, "missing", why)
        },
    }
}

fn filter_row(world: &World<'_>) -> Check {
    match (&world.host.fences.filters, &world.host.fences.no_filter) {
        (Some(_), _) => Check {
            status: messages::stand_in_nodes(),
            ..check(
                "device filter (BPF)",
                "ok",
                format!(
                    "programs in claims open only their own GPUs (major {})",
                    world.host.fences.majors.nvidia
                ),
            )
        },
        (None, why) => Check {
            fix: Some("run gshared as root".to_owned()),
            ..check(
                "device filter (BPF)",
                "missing",
                why.clone().unwrap_or_else(|| "off".to_owned()),
            )
        },
    }
}

fn gpu_rows(world: &World<'_>) -> Vec<Check> {
    let found = counters::Found::look();
    let row = |g| {
        let (gpu, name) = (&world.gpus[g], format!("GPU {g}"));
        if let Some(released) = released_text(world.gpus, g) {
            return check(&name, "limited", format!("{}; {released}", gpu.model));
        }
        let reading = world.gpus.reading(g);
        let activity = match reading {
            Some(reading) => counters::chosen(reading, &found).1,
            None => "SM activity unknown".to_owned(),
        };
        let overhead = if gpu.overhead.known {
            "measured"
        } else {
            "assumed"
        };
        let state = if reading.is_some() { "ok" } else { "missing" };
        check(
            &name,
            state,
            format!(
                "{}; {activity}; each CUDA context takes {} of GPU memory ({overhead}){}",
                gpu.model,
                Bytes(gpu.overhead.bytes),
                gpu.overhead
                    .mps
                    .map_or_else(String::new, |b| format!(", {} through MPS", Bytes(b)))
            ),
        )
    };
    world.gpus.present().map(row).collect()
}

fn launcher_row(world: &World<'_>) -> Check {
    let name = "strict launcher";
    let install = "sudo gshare setup".to_owned();
    if !world.host.driver.strict.on {
        let fix = (world.config.launch.caps != LaunchCaps::Preload).then_some(install);
        return Check {
            fix: fix.filter(|_| world.host.mode == Mode::System),
            ..check(
                name,
                "limited",
                format!(
                    "limits are cooperative: a program can deliberately load the driver without gshare's library; \
                     {}",
                    world.host.driver.strict.off_because
                ),
            )
        };
    }
    match world.host.driver.strict.launcher() {
        Ok(path) => Check {
            ..check(
                name,
                "ok",
                format!(
                    "{} mounts gshare's libraries over {} driver files in each command's own mount namespace",
                    path.display(),
                    world
                        .host
                        .driver
                        .strict
                        .binds()
                        .iter()
                        .filter(|bind| !std::path::Path::new(&bind.on)
                            .starts_with(&world.host.driver.dirs.preload))
                        .count()
                ),
            )
        },
        Err(why) => Check {
            fix: Some(install),
            ..check(name, "missing", messages::no_command_starts(why))
        },
    }
}

fn service_row(world: &World<'_>) -> Check {
    let mode = world.host.mode.name();
    let row = check(
        "service",
        "ok",
        format!(
            "gshared {} ({mode}), {}",
            env!("CARGO_PKG_VERSION"),
            world.host.paths.socket.display()
        ),
    );
    match world.host.mode {
        Mode::System => row,
        Mode::User => Check {
            state: "limited".to_owned(),
            detail: format!(
                "{}; a user's own service knows only its own claims",
                row.detail
            ),
            fix: Some("sudo gshare setup".to_owned()),
            ..row
        },
    }
}

fn shim_row(world: &World<'_>) -> Check {
    let of = |id: ClaimId, g| {
        overuse::uncounted(world, id, g)
            .into_iter()
            .next()
            .unwrap_or_default()
    };
    let all = world.claims.keys();
    let all = all.flat_map(|id| (0..world.gpus.len()).map(move |g| (*id, g)));
    let past: Vec<String> = all
        .flat_map(|(id, g)| {
            of(id, g)
                .into_iter()
                .map(move |pid| format!("{pid} in {id}"))
        })
        .collect();
    match &world.host.driver.libcuda {
        Ok(_) if !past.is_empty() => Check {
            fix: (!world.host.driver.strict.on && world.host.mode == Mode::System).then(|| {
                "sudo gshare setup (strict limits apply to such programs, too)".to_owned()
            }),
            ..check(
                "memory limit (library)",
                "limited",
                format!(
                    "these processes loaded the driver without gshare's library (as Ollama does) and have no limit: {}",
                    past.join(", ")
                ),
            )
        },
        Ok(_) => check(
            "memory limit (library)",
            "ok",
            if world.host.driver.strict.on {
                "gshare's library is mounted over the driver: programs cannot bypass it by loading the driver themselves"
            } else {
                "gshare's library is preloaded (cooperative): a program can bypass it on purpose"
            },
        ),
        Err(why) => check("memory limit (library)", "missing", why.clone()),
    }
}

/// Functions of the driver that are newer than the library's table.
fn table_row(world: &World<'_>) -> Check {
    let name = "driver functions";
    match world
        .host
        .driver
        .libcuda
        .as_ref()
        .map(|path| gshare_artifacts::unknown_names(path))
    {
        Ok(Ok(unknown)) if unknown.is_empty() => check(
            name,
            "ok",
            "gshare's library knows every function of this driver",
        ),
        Ok(Ok(unknown)) => check(
            name,
            "limited",
            format!(
                "gshare's library does not know these functions of this driver, and does not count what they use: {}",
                unknown.join(" ")
            ),
        ),
        Ok(Err(error)) => check(
            name,
            "limited",
            format!("the driver cannot be read: {error}"),
        ),
        Err(why) => check(name, "missing", why.clone()),
    }
}

/// All rows.
pub(crate) fn doctor(
    effects: &Effects,
    features: &Features,
    history: &History,
    viewer: Viewer,
) -> Vec<Check> {
    let mut rows = vec![
        driver_row(&effects.world(), &effects.observer),
        service_row(&effects.world()),
    ];
    let guests = super::guest::rows(effects.gpus.iter().map(|gpu| gpu.model.as_str()));
    rows.extend(
        guests
            .into_iter()
            .map(|(name, detail)| check(name, "limited", detail)),
    );
    rows.extend(gpu_rows(&effects.world()));
    rows.push(conformance::row(&effects.world()));
    rows.extend(health_rows(&effects.world(), features));
    rows.push(shim_row(&effects.world()));
    rows.push(table_row(&effects.world()));
    rows.push(cgroup_row(&effects.world()));
    rows.push(journal_row(&effects.world(), &effects.journal));
    rows.push(history_row(&effects.world(), history));
    rows.push(administrators_row(&effects.world()));
    rows.push(metrics_row(features));
    rows.push(containers_row(&effects.world()));
    rows.push(filter_row(&effects.world()));
    rows.extend(policy::doctor::policy_rows(
        &effects.world(),
        &effects.journal,
        viewer,
    ));
    rows.extend(mps::doctor::rung_rows(&effects.world()));
    rows.push(launcher_row(&effects.world()));
    rows.extend(facts::lever_rows(
        &effects.world(),
        features,
        &effects.levers,
    ));
    grouped(rows)
}

fn driver_row(world: &World<'_>, observer: &Observer) -> Check {
    let version = world.gpus.driver_version();
    let what = if world.host.driver.simulated {
        "simulated driver"
    } else {
        "driver"
    };
    let libcuda = match &world.host.driver.libcuda {
        Ok(path) => path.display().to_string(),
        Err(why) => why.clone(),
    };
    if let Health::Unavailable(why) = observer.health() {
        return check("driver", "missing", format!("NVML does not answer: {why}"));
    }
    let state = if world.host.driver.libcuda.is_ok() {
        "ok"
    } else {
        "limited"
    };
    Check {
        fix: world.host.driver.libcuda.is_err().then(|| {
            "set the path of libcuda in the config: [driver] libcuda = \"/path/libcuda.so.1\""
                .to_owned()
        }),
        ..check(
            "driver",
            state,
            format!(
                "{what} {version}; NVML {}; CUDA {libcuda}",
                world.host.driver.nvml.display()
            ),
        )
    }
}

/// A row for each GPU with errors.
fn health_rows(world: &World<'_>, features: &Features) -> Vec<Check> {
    let row = |g: usize| {
        let health = health_view(world, features, g).filter(|h| h.grade > Grade::Good)?;
        let state = if health.grade == Grade::Sick {
            "missing"
        } else {
            "limited"
        };
        Some(Check {
            fix: health.tell,
            ..check(&format!("health GPU {g}"), state, health.reasons.join("; "))
        })
    };
    world.gpus.present().filter_map(row).collect()
}

/// Health of a GPU; absent if nothing is known.
pub(crate) fn health_view(world: &World<'_>, features: &Features, g: usize) -> Option<HealthView> {
    features.health.view(world, g)
}

fn history_row(world: &World<'_>, history: &History) -> Check {
    let name = "history";
    let dir = world.host.paths.state_dir.display();
    let Some(status) = history.status() else {
        return check(
            name,
            "missing",
            "the thread that writes the history could not be started",
        );
    };
    let max = world.config.history.max_size;
    match &status.trouble {
        None => check(
            name,
            "ok",
            format!("{dir}/history.db, {} of at most {max}", Bytes(status.bytes)),
        ),
        Some(why) => Check {
            fix: Some(format!("free disk space: df -h {dir}")),
            ..check(
                name,
                "limited",
                format!(
                    "cannot write {dir}/history.db: {why}; samples of 10 s that are not written yet: {}, lost: {}",
                    status.waiting, status.lost
                ),
            )
        },
    }
}

fn journal_row(world: &World<'_>, journal: &Journal) -> Check {
    let dir = world.host.paths.state_dir.display();
    let waiting = journal.unwritten();
    let trouble = match (waiting, journal.try_out()) {
        (0, Ok(())) => {
            return check(
                "journal",
                "ok",
                format!("{dir}; starts of the service: {}", journal.starts()),
            );
        }
        (0, Err(error)) => format!("cannot write to {dir}, so no claim can start: {error}"),
        _ => format!(
            "cannot record in {dir} that {} ended",
            many(waiting, "claim")
        ),
    };
    Check {
        fix: Some(format!("free disk space: df -h {dir}")),
        ..check("journal", "limited", trouble)
    }
}

fn metrics_row(features: &Features) -> Check {
    let name = "metrics";
    match features.metrics.exporter() {
        Ok(Some(place)) => check(name, "ok", format!("Prometheus finds them at {place}")),
        Ok(None) => check(name, "ok", "not exported (the default)"),
        Err(why) => Check {
            fix: Some("set another address in the config: [metrics] listen".to_owned()),
            ..check(name, "missing", why.clone())
        },
    }
}
