//! Files for Slurm's configuration, and checks whether they are in place.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gshare_config::SlurmGpus;
use gshare_enforcer::proc::lives_on_the_machine;
use gshare_proto::{Call, Reply, messages};

use super::super::args::slurm::{ConfigArgs, FILES, SiteArgs};
use super::health::{down, drained, node};
use super::{Not, Outcome, Site, conf, gres, job};
use crate::command::failure::Failure;
use crate::command::out;

/// Destination of each file, in the order of [`FILES`].
const WHERE: [&str; FILES.len()] = [
    "lines for DIR/slurm.conf; if Slurm already has an Epilog or HealthCheckProgram, call gshare's script from it",
    "a line for DIR/gres.conf, if it has no shards yet",
    "a line for DIR/plugstack.conf",
    "a block for DIR/job_submit.lua, on the host of slurmctld",
    "a block for DIR/cli_filter.lua, on every host where users type srun, sbatch or salloc",
    "DIR/gshare-epilog, executable",
    "DIR/gshare-health, executable",
    "the plugin's source; to compile it: gshare slurm config gshare_spank.c | cc -shared -fPIC -O2 -x c - -o \
     /usr/local/lib/slurm/gshare_spank.so",
];

/// What gshare's own configuration lacks.
pub(super) const NO_GPUS: &str = "gshare.toml: gpus in [slurm] lists no GPU that Slurm gives out";

/// What to restart after a change.
pub(super) const RESTART: &str = "After a change of slurm.conf or gres.conf, restart slurmctld and every slurmd. After a change of \
     plugstack.conf or the plugin on a node, restart slurmd there. Running jobs continue.";

pub(super) fn print(config: Option<&Path>, args: &ConfigArgs) -> Outcome {
    let Some(file) = args.file.as_deref() else {
        for (name, what) in FILES.iter().zip(WHERE) {
            let what = what.replace("DIR", &args.site.dir.display().to_string());
            out::print(&format!("gshare slurm config {name:<15} {what}\n"))?;
        }
        return Ok(0);
    };
    out::print(&text(&Site::of(config)?, config, &args.site, file)?)?;
    Ok(0)
}

/// One of [`FILES`].
pub(super) fn text(
    site: &Site,
    config: Option<&Path>,
    args: &SiteArgs,
    file: &str,
) -> Result<String, Failure> {
    let program = std::env::current_exe()?;
    let program = program.display();
    let jobs = &site.jobs;
    let dir = args.dir.display();
    let option = |before: &str| {
        let file = config.map(|f| format!("{before}{}", f.display()));
        file.unwrap_or_default()
    };
    let script = |what: &str| {
        format!(
            "#!/bin/sh\nexec {program} slurm {what}{}\n",
            option(" --config ")
        )
    };
    Ok(match file {
        "slurm.conf" => format!(
            "Epilog={dir}/gshare-epilog\n\
             HealthCheckProgram={dir}/gshare-health\nHealthCheckInterval=60\n\
             JobSubmitPlugins=lua\nCliFilterPlugins=lua\nGresTypes=gpu,shard\n\
             # On each node with N GPUs: NodeName=... Gres=gpu:N,shard:M, where M is {0} times N\n\
             # To count shards in accounting and billing:\n# AccountingStorageTRES=gres/gpu,gres/shard\n\
             # PartitionName=... TRESBillingWeights=\"GRES/gpu={0},GRES/shard=1\"\n",
            args.shards
        ),
        "gres.conf" => format!(
            "# For a node with one GPU. With more, set Count to {} times their number.\nName=shard Count={0}\n",
            args.shards
        ),
        "plugstack.conf" => format!(
            "optional {} gshare={program} dir={}{}\n",
            args.plugin.display(),
            jobs.display(),
            option(" config=")
        ),
        "job_submit.lua" => {
            let memory = args.gpu_mem.map(|m| m.0).or_else(|| largest(site));
            block(file, args.shards.into(), memory.unwrap_or(0) >> 20)
        }
        "cli_filter.lua" => block(file, args.shards.into(), 0),
        "gshare-epilog" => script("epilog"),
        // slurmd starts it without PATH and SLURM_CONF, which it needs to find scontrol and the cluster.
        "gshare-health" => {
            let conf = args.dir.join("slurm.conf");
            let conf = conf
                .exists()
                .then(|| format!("export SLURM_CONF={}\n", conf.display()));
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut dirs = std::env::split_paths(&path);
            let own = dirs.find(|dir| dir.is_absolute() && dir.join("scontrol").exists());
            let path = own.map(|dir| format!("export PATH='{}'\n", dir.display()));
            let lines = [path, conf].map(Option::unwrap_or_default).concat();
            let lines = format!("#!/bin/sh\n{lines}");
            script("health").replacen("#!/bin/sh\n", &lines, 1)
        }
        _ => include_str!("gshare_spank.c").to_owned(),
    })
}

/// The block of a Lua file.
fn block(file: &str, per_gpu: u64, mib: u64) -> String {
    let rules = include_str!("rules.lua").replace("@SHARDS@", &per_gpu.to_string());
    let text = match file {
        "job_submit.lua" => include_str!("job_submit.lua"),
        _ => include_str!("cli_filter.lua"),
    };
    text.replace("@RULES@\n", &rules)
        .replace("@MEMORY@", &mib.to_string())
}

/// Bytes of the largest GPU that Slurm allocates here; `None` if the service does not report them.
fn largest(site: &Site) -> Option<u64> {
    let Ok(Reply::Snapshot(snapshot)) = site.ask(Call::Snapshot) else {
        return None;
    };
    let ours = (snapshot.gpus.iter().enumerate())
        .filter(|(index, gpu)| site.config.slurm.gpus.has(&gpu.uuid, *index));
    ours.filter_map(|(_, gpu)| gpu.mem_allocatable).max()
}

/// The values of a key in the output of `scontrol show config`. Slurm 24.11 numbers those that may be several:
/// `Epilog[0]`.
fn values<'t>(shown: &'t str, key: &str) -> impl Iterator<Item = &'t str> {
    let pairs = shown.lines().filter_map(|line| line.split_once('='));
    let own =
        pairs.filter(move |(name, _)| name.split('[').next().is_some_and(|n| n.trim() == key));
    own.map(|(_, value)| value.trim())
}

fn value<'t>(shown: &'t str, key: &str) -> &'t str {
    values(shown, key).next().unwrap_or("")
}

fn lists(value: &str, word: &str) -> bool {
    value.split(',').any(|w| w.trim() == word)
}

/// The `Gres=` of `scontrol show node --oneliner`.
fn resources(node: &str) -> &str {
    let mut words = node.split_whitespace();
    words
        .find_map(|w| w.strip_prefix("Gres="))
        .unwrap_or_default()
}

/// Missing parts of Slurm's configuration, by Slurm's own output.
fn lacks(config: &str, node: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for (key, what) in [("Epilog", "epilog"), ("HealthCheckProgram", "health")] {
        let runs = |program: &str| {
            let text = fs::read_to_string(program).unwrap_or_default();
            text.contains(&format!("slurm {what}")) || text.contains(&format!("gshare-{what}"))
        };
        let mode = |program: &str| fs::metadata(program).map_or(0, |m| m.permissions().mode());
        match values(config, key).find(|program| runs(program)) {
            None => missing.push(format!(
                "slurm.conf: {key}={} does not run gshare slurm {what}",
                value(config, key)
            )),
            Some(program) if mode(program) & 0o111 == 0 => missing.push(format!(
                "slurm.conf: {key}={program} cannot be executed: chmod 755 {program}"
            )),
            Some(_) => {}
        }
    }
    for (key, word) in [
        ("JobSubmitPlugins", "lua"),
        ("CliFilterPlugins", "lua"),
        ("GresTypes", "shard"),
    ] {
        let set = value(config, key);
        if !lists(set, word) {
            missing.push(format!("slurm.conf: {key}={set} does not list {word}"));
        }
    }
    let conf = value(config, "SLURM_CONF");
    let beside = Path::new(conf).with_file_name("plugstack.conf");
    // Slurm 22.05 does not show its default.
    let stack = match value(config, "PlugStackConfig") {
        "" | "(null)" => beside.display().to_string(),
        named => named.to_owned(),
    };
    let text = fs::read(&stack).unwrap_or_default();
    let dir = Path::new(&stack).parent().unwrap_or(Path::new("/"));
    let lines = conf::lines(&text, dir);
    let plugin = lines.iter().find_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|w| w.ends_with("gshare_spank.so"))
    });
    let plugin = plugin.map(|named| placed(named, value(config, "PluginDir")));
    let version = value(config, "SLURM_VERSION");
    match plugin {
        None => missing.push(format!("{stack}: no line for gshare_spank.so")),
        Some(plugin) if !Path::new(&plugin).exists() => missing.push(format!(
            "{plugin} does not exist: compile it with {}",
            compile(&plugin)
        )),
        Some(plugin) => {
            let wrong = match fs::read(&plugin).ok().and_then(|bytes| built_for(&bytes)) {
                Some(own) if version.starts_with(&format!("{own}.")) => None,
                Some(own) => Some(format!(
                    "is compiled for Slurm {own}, so Slurm {version} does not load it"
                )),
                None => Some("is the plugin of another gshare".to_owned()),
            };
            missing.extend(wrong.map(|wrong| {
                format!(
                    "{plugin} {wrong}: compile it again with {}",
                    compile(&plugin)
                )
            }));
        }
    }
    let resources = resources(node);
    let (gpus, shards) = (
        gres::total(resources, "gpu"),
        gres::total(resources, "shard"),
    );
    if gpus == 0 || shards == 0 || shards % gpus != 0 {
        missing.push(format!(
            "this node has Gres={resources}: it needs gpu:N and shard:M, with the same number of shards for each GPU"
        ));
    } else {
        let per_gpu = shards / gpus;
        let counted = lists(value(config, "AccountingStorageTRES"), "gres/shard");
        if value(config, "AccountingStorageType").ends_with("slurmdbd") && !counted {
            missing.push(format!(
                "slurm.conf: slurmdbd does not count shards: add AccountingStorageTRES=gres/gpu,gres/shard; to bill \
                 them, add TRESBillingWeights=\"GRES/gpu={per_gpu},GRES/shard=1\" to the partitions"
            ));
        }
        let host = crate::figures::host();
        let decides = values(config, "SlurmctldHost").any(|h| h.split('(').next() == Some(&host));
        missing.extend(rules_lack(conf, per_gpu, decides));
    }
    missing
}

/// The file of a plugin in plugstack.conf: Slurm looks for one that is not absolute in these directories, in this order.
fn placed(named: &str, dirs: &str) -> String {
    let mut all = dirs.split(':').map(|dir| Path::new(dir).join(named));
    let there = all.clone().find(|file| file.exists());
    let file = there.or_else(|| all.next());
    file.map_or_else(String::new, |file| file.display().to_string())
}

/// The command that compiles the plugin.
pub(super) fn compile(plugin: impl Display) -> String {
    format!("gshare slurm config gshare_spank.c | cc -shared -fPIC -O2 -x c - -o {plugin}")
}

/// The mark of a compiled plugin that agrees with this gshare.
pub(super) const MARK: &[u8] = b"gshare-plugin-5:";

/// The Slurm release of such a plugin, `22.05`.
pub(super) fn built_for(plugin: &[u8]) -> Option<String> {
    let at = plugin.windows(MARK.len()).position(|w| w == MARK)? + MARK.len();
    match plugin.get(at..at + 4)? {
        [_, minor, major, _] => Some(format!("{major}.{minor:02}")),
        _ => None,
    }
}

/// Missing parts of the Lua files beside slurm.conf on a node with this many shards per GPU. `decides`: slurmctld runs
/// here.
fn rules_lack(conf: &str, per_gpu: u64, decides: bool) -> Vec<String> {
    let mut missing = Vec::new();
    for name in ["job_submit.lua", "cli_filter.lua"] {
        let file = Path::new(conf).with_file_name(name);
        // slurmctld's files may only be on another host.
        let Ok(text) = fs::read_to_string(&file) else {
            if decides || name == "cli_filter.lua" {
                missing.push(format!("{} does not exist", file.display()));
            }
            continue;
        };
        let number = |before: &str| {
            let line = text.lines().find_map(|l| l.trim().strip_prefix(before));
            line.and_then(|number| number.parse::<u64>().ok())
        };
        let own = block(name, per_gpu, number("local MEMORY = ").unwrap_or(0));
        let wrong = match number("local PER_GPU = ") {
            None => "has no block of gshare",
            Some(shards) if shards != per_gpu => {
                "has another number of shards for each GPU than this node"
            }
            Some(_) if !text.contains(&own) => "has the block of another gshare",
            Some(_) => continue,
        };
        missing.push(format!(
            "{} {wrong}: gshare slurm config {name} --shards {per_gpu} prints the right one",
            file.display()
        ));
    }
    missing
}

/// What is wrong with `[slurm] gpus` where Slurm has this many GPUs of a machine with so many.
fn wrong_gpus(gpus: &SlurmGpus, given: u64, there: usize) -> Option<String> {
    let (have, text) = match gpus {
        SlurmGpus::None => return None,
        SlurmGpus::All => (there, format!("= \"all\" means the machine's {there}")),
        SlurmGpus::These(names) => (names.len(), format!("lists {}", names.len())),
    };
    (given > 0 && have as u64 != given).then(|| {
        format!(
            "[slurm] gpus in gshare.toml {text}, and Slurm gives out {given} here: list those of gres.conf, in the same \
             order, such as gpus = [2, 3]"
        )
    })
}

pub(super) fn check(site: &Site) -> Outcome {
    let mut missing = Vec::new();
    let (mut there, mut restart) = (None, false);
    if !site.is_on() {
        missing.push(NO_GPUS.to_owned());
    }
    match site.ask(Call::Snapshot) {
        Ok(Reply::Snapshot(snapshot)) => {
            there = Some(snapshot.gpus.len());
            let service = snapshot.service.unwrap_or_default();
            let stage = service.stage.filter(|s| s.machine < 2);
            if let Some(stage) = stage {
                missing.push(format!(
                    "gshare is in {}, so jobs are only counted; to limit them: gshare admin stage 2",
                    stage.text()
                ));
            }
            if service.off.is_some() {
                missing.push(
                    "gshare is off, so jobs are not limited; to switch it on: gshare admin on"
                        .to_owned(),
                );
            }
        }
        Err(Not::Refused(why)) => missing.push(format!("gshare's service: {why}")),
        _ => missing.push(messages::no_answer(site.socket.display())),
    }
    if let Some(slurmd) = job::slurmd(&site.jobs).filter(|pid| !lives_on_the_machine(*pid)) {
        missing.push(format!(
            "slurmd (process {slurmd}) has a file system of its own, so no job with a part of a GPU starts: remove \
             PrivateTmp= and the like from slurmd's unit, and restart it"
        ));
    }
    let asked = site.scontrol(&["show", "config"]).and_then(|config| {
        Ok((
            config,
            site.scontrol(&["show", "node", &node(), "--oneliner"])?,
        ))
    });
    match asked {
        Ok((config, node)) => {
            let lacks = lacks(&config, &node);
            restart = !lacks.is_empty();
            missing.extend(lacks);
            let given = gres::total(resources(&node), "gpu");
            missing.extend(there.and_then(|n| wrong_gpus(&site.config.slurm.gpus, given, n)));
            missing.extend(drained(&node));
            missing.extend(down(&node));
        }
        Err(Failure { message, .. }) => missing.push(format!("Slurm does not answer: {message}")),
    }
    if missing.is_empty() {
        out::print("nothing is missing\n")?;
        return Ok(0);
    }
    for line in &missing {
        out::print(&format!("{line}\n"))?;
    }
    if restart {
        out::print(&format!("{RESTART}\n"))?;
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_are_not_those_of_slurm_are_named() {
        let list = |n: usize| SlurmGpus::These(vec![String::new(); n]);
        assert_eq!(wrong_gpus(&SlurmGpus::All, 4, 4), None);
        assert_eq!(wrong_gpus(&list(2), 2, 4), None);
        let all = wrong_gpus(&SlurmGpus::All, 2, 4).expect("others");
        assert!(
            all.contains("the machine's 4, and Slurm gives out 2"),
            "{all}"
        );
        let short = wrong_gpus(&list(1), 2, 4).expect("one is missing");
        assert!(short.contains("lists 1, and Slurm gives out 2"), "{short}");
    }

    #[test]
    fn what_slurm_lacks_is_reported_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name).display().to_string()
        };
        let program = |name: &str, text: &str| {
            let path = file(name, text);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let bytes = |release: [u8; 4]| [b"x ", MARK, &release, b"y"].concat();
        let all = lacks(
            "Epilog = (null)\nGresTypes = gpu\n",
            "NodeName=a Gres=gpu:2",
        );
        assert_eq!(all.len(), 7, "{all:?}");
        assert!(
            all[0].contains("Epilog=(null) does not run gshare slurm epilog"),
            "{all:?}"
        );
        let plugin = file("gshare_spank.so", "");
        let config = format!(
            "Epilog = {}\nHealthCheckProgram = {}\nJobSubmitPlugins = lua\nCliFilterPlugins = lua\nGresTypes = gpu,shard\n\
             PlugStackConfig = {}\n",
            program("epilog", "#!/bin/sh\n/etc/slurm/gshare-epilog\n"),
            program("health", "exec gshare slurm health\n"),
            file(
                "plugstack.conf",
                &format!("# gshare_spank.so\noptional {plugin} x=y\n")
            ),
        );
        fs::write(dir.path().join("gshare_spank.so"), bytes([8, 5, 22, 0])).unwrap();
        let config = format!(
            "{config}SLURM_VERSION = 22.05.8\nSLURM_CONF = {}\n",
            dir.path().join("slurm.conf").display()
        );
        let site = "function slurm_cli_setup_defaults() return slurm.SUCCESS end\n";
        let filter = format!(
            "{site}{}return slurm.SUCCESS\n",
            block("cli_filter.lua", 8, 0)
        );
        file("cli_filter.lua", &filter);
        file("job_submit.lua", &block("job_submit.lua", 8, 4096));
        let node = "NodeName=a Gres=gpu:2(S:0),shard:16(S:0) State=IDLE";
        assert_eq!(lacks(&config, node), [""; 0]);
        let stack = dir.path().join("plugstack.conf").display().to_string();
        assert_eq!(lacks(&config.replace(&stack, "(null)"), node), [""; 0]);
        // By hand, without the right to execute it.
        let health = dir.path().join("health");
        fs::set_permissions(&health, fs::Permissions::from_mode(0o644)).unwrap();
        let still = lacks(&config, node);
        assert!(
            still.len() == 1 && still[0].contains("cannot be executed: chmod 755"),
            "{still:?}"
        );
        fs::set_permissions(&health, fs::Permissions::from_mode(0o755)).unwrap();
        // On the host of slurmctld, its rules are needed.
        fs::rename(dir.path().join("job_submit.lua"), dir.path().join("away")).unwrap();
        assert_eq!(lacks(&config, node), [""; 0]);
        let host = crate::figures::host();
        let here = lacks(
            &format!("{config}SlurmctldHost[0] = {host}(127.0.0.1)\n"),
            node,
        );
        assert!(
            here.len() == 1 && here[0].contains("job_submit.lua does not exist"),
            "{here:?}"
        );
        fs::rename(dir.path().join("away"), dir.path().join("job_submit.lua")).unwrap();
        // As Debian's own.
        fs::create_dir(dir.path().join("more")).unwrap();
        fs::rename(&stack, dir.path().join("more/gshare.conf")).unwrap();
        file("plugstack.conf", "include more/*.conf\n");
        assert_eq!(lacks(&config, node), [""; 0]);
        // Slurm looks for it in these directories, in this order.
        file("plugstack.conf", "required gshare_spank.so\n");
        let named = format!("{config}PluginDir = /none:{}\n", dir.path().display());
        assert_eq!(lacks(&named, node), [""; 0]);
        file("plugstack.conf", "include more/*.conf\n");
        let several = format!(
            "Epilog[0] = /site/epilog\n{}",
            config.replace("Epilog =", "Epilog[1] =")
        );
        assert_eq!(lacks(&several, node), [""; 0]);
        let accounts = "AccountingStorageType = accounting_storage/slurmdbd\nAccountingStorageTRES = cpu,gres/gpu\n";
        let uncounted = lacks(&format!("{config}{accounts}"), node);
        assert_eq!(uncounted.len(), 1, "{uncounted:?}");
        assert!(
            uncounted[0].contains("AccountingStorageTRES=gres/gpu,gres/shard")
                && uncounted[0].contains("GRES/gpu=8,GRES/shard=1"),
            "{uncounted:?}"
        );
        // As an earlier gshare printed it.
        file("cli_filter.lua", &filter.replace("by_task", "by_tasks"));
        let old = lacks(&config, node);
        assert_eq!(old.len(), 1, "{old:?}");
        assert!(
            old[0].contains("cli_filter.lua has the block of another gshare")
                && old[0].contains("--shards 8"),
            "{old:?}"
        );
        file("cli_filter.lua", &filter.replace("= 8", "= 100"));
        file("job_submit.lua", "return slurm.SUCCESS\n");
        fs::write(&plugin, bytes([8, 11, 21, 0])).unwrap();
        let other = lacks(&config, node);
        assert_eq!(other.len(), 3, "{other:?}");
        assert!(
            other[0].contains("compiled for Slurm 21.11, so Slurm 22.05.8"),
            "{other:?}"
        );
        assert!(
            other[1].contains("job_submit.lua has no block of gshare"),
            "{other:?}"
        );
        assert!(
            other[2].contains("config cli_filter.lua --shards 8 prints"),
            "{other:?}"
        );
        file("gshare_spank.so", "gshare-built-for");
        let old = lacks(&config, node).remove(0);
        assert!(old.contains("is the plugin of another gshare"), "{old}");
        fs::remove_file(&plugin).unwrap();
        let gone = lacks(&config, "NodeName=a Gres=gpu:2,shard:15");
        assert_eq!(gone.len(), 2, "{gone:?}");
        assert!(
            gone[0].contains("compile it") && gone[1].contains("shard:15"),
            "{gone:?}"
        );
    }
}
