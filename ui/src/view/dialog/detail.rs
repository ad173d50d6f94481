//! The page of a row: what it holds and uses in pictures, then the facts.

use gshare_proto::counts::many;
use gshare_proto::{
    Caps, Check, ClaimView, Figure, GpuView, Grade, HealthView, Named, ProcessView, QueueView,
    Source, UnclaimedView, UserView,
};
use ratatui::text::Line;
use ratatui::widgets::Widget;

use super::{drawn, widget};
use crate::model::{AtLeast, ClaimRow, RowKey, sums};
use crate::text::{about, gib, hours, percent, seconds, share};
use crate::view::{Facts, Scene, View, cells, claims, health, line, overview, tree, waiting};
use crate::widgets::bullet::Bullet;
use crate::widgets::slice_map::SliceMap;
use crate::widgets::spark::spark;

const LABEL: usize = 13;

struct Page<'a> {
    view: View<'a>,
    cols: usize,
    facts: Facts<'a>,
}

pub(super) fn lines(view: &View<'_>, key: &RowKey, cols: usize) -> (String, Vec<Line<'static>>) {
    let facts = Facts::new(view.look, cols, (0, LABEL));
    let mut page = Page {
        view: *view,
        cols,
        facts,
    };
    let (model, snapshot) = (view.model, view.snapshot);
    let (title, found) = match key {
        RowKey::Claim(id) => {
            let found = model.claim(id).map(|claim| page.claim(claim));
            (format!("Claim {id}"), found)
        }
        RowKey::Waiting(id) => {
            let found = model.waiting(id).map(|waiting| page.waiting(waiting));
            (format!("{id} waits"), found)
        }
        RowKey::Process(pid, gpu) => {
            let mut programs = snapshot.unclaimed.iter();
            let program = programs.find(|u| (u.pid, u.gpu) == (*pid, *gpu));
            let claim = model.claim_of(*pid);
            let mut inside = claim.into_iter().flat_map(|c| &c.processes);
            let inside = inside.find(|p| (p.pid, p.gpu) == (*pid, *gpu));
            let inside = claim.zip(inside);
            let inside = inside.map(|(claim, process)| page.process(claim, process));
            let found = inside.or_else(|| program.map(|program| page.unclaimed(program)));
            (format!("Process {pid}"), found)
        }
        RowKey::Group(title) => {
            match snapshot.users.iter().find(|u| u.user == *title) {
                Some(user) => page.user(user),
                None => page.tell("", "Right shows what is in it, Left hides it."),
            }
            (title.clone(), Some(()))
        }
        RowKey::User(uid) => {
            let user = snapshot.users.iter().find(|u| u.uid == *uid);
            let title = user.map_or(format!("uid {uid}"), |u| format!("User {}", u.user));
            (title, user.map(|user| page.user(user)))
        }
        RowKey::Check(name) => {
            let found = model.checks().find(|c| c.name == *name);
            (name.clone(), found.map(|check| page.check(check)))
        }
        RowKey::Gpu(index) => {
            let found = model.gpu(*index).map(|gpu| page.gpu(gpu));
            (format!("GPU {index}"), found)
        }
    };
    if found.is_none() {
        page.tell("", "It has ended.");
    }
    (title, page.facts.lines)
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Gpm => "GPM",
        Source::Dcgm => "DCGM",
        Source::CuptiPm => "PM sampling",
        Source::Shim => "gshare's library",
        Source::TimeBusy => "time busy",
        Source::Nvml => "NVML",
        Source::Ledger => "gshare's count",
    }
}

impl Page<'_> {
    fn tell(&mut self, label: &str, text: impl AsRef<str>) {
        let style = self.view.theme.text;
        self.facts.tell(label, text.as_ref(), style, 4);
    }

    fn tell_known(&mut self, label: &str, text: Option<String>) {
        if let Some(text) = text {
            self.tell(label, text);
        }
    }

    /// A label, then a picture of one row for each line.
    fn picture(&mut self, label: &str, lines: Vec<Line<'static>>) {
        for (i, picture) in lines.into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            let mut line = line!(self.view; dim self.view.left(label, LABEL));
            line.extend(picture);
            self.facts.lines.push(line);
        }
    }

    /// Use and claim of a whole as a bullet, and both in words.
    fn bullet(&mut self, label: &str, bullet: Bullet, words: String) {
        let cells = self.cols.saturating_sub(LABEL + 34).min(40);
        let mut line = bullet.line(cells, self.view.look);
        line.extend(line!(self.view; text format!("  {words}")));
        self.picture(label, vec![line]);
    }

    /// Claims in the columns of their table.
    fn claims(&mut self, of: impl Fn(&ClaimView) -> bool) {
        let table = claims::Claims::new(&self.view, self.cols, false);
        let claims = self.view.snapshot.claims.iter().filter(|c| of(c));
        let rows: Vec<ClaimRow<'_>> = claims.map(ClaimRow::Claim).collect();
        if rows.is_empty() {
            return;
        }
        let columns = table.columns(&rows);
        let size = (cells(self.cols), cells(rows.len() + 1));
        let draw = |at, scene: &mut Scene<'_>| {
            let lines = rows.iter().map(|row| table.row(row, &columns)).collect();
            let n = rows.len().to_string();
            let table = table.table(&columns, ("CLAIMS", &n, false), lines, at, scene);
            Widget::render(table, at, scene.buf);
        };
        self.facts.lines.push(Line::default());
        self.facts.lines.extend(drawn(draw, size, self.view.look));
    }

    fn claim(&mut self, claim: &ClaimView) {
        let view = self.view;
        let clock = view.model.clock;
        if !claim.adopted && !claim.gpus.is_empty() {
            let known = view.model.past.of_claim(&claim.id).is_some();
            let size = (cells(self.cols), if known { 8 } else { 1 });
            let draw = |at, scene: &mut Scene<'_>| tree::pictures(&view, claim, at, scene);
            self.facts.lines.extend(drawn(draw, size, view.look));
        }
        let facts = tree::facts(&view, claim, (self.cols, LABEL));
        self.facts.lines.extend(facts);
        self.owner(&claim.user, claim.uid, &claim.project, &claim.class);
        let source = |named: &Option<Named>| {
            let Named { value, source } = named.as_ref()?;
            Some(format!("{value} ({source})"))
        };
        let (at, ago) = (clock.time(claim.since_ms), clock.since(claim.since_ms));
        let ends = claim.ends_ms.map(|at| format!(", ends {}", clock.time(at)));
        let granted = format!("{at}, {ago} ago{}", ends.unwrap_or_default());
        let limits = match claim.caps {
            Caps::Strict => "strict",
            Caps::Cooperative => "cooperative: a program can bypass them on purpose",
            Caps::None => "none",
        };
        let identity = &claim.identity;
        let stuck = claim.turns.and_then(|turns| turns.stuck);
        for (label, known) in [
            ("over-use", claim.overuse.clone()),
            ("turns", stuck.map(|s| s.told())),
            ("name", claim.name.clone()),
            ("notebook", source(&identity.notebook)),
            ("script", source(&identity.script)),
            ("model", source(&identity.model)),
            ("unit", source(&identity.unit)),
            ("granted", Some(granted)),
            ("limits", Some(limits.to_owned())),
        ] {
            self.tell_known(label, known);
        }
        for g in &claim.gpus {
            self.part(claim, g);
        }
        let launches = view.or_dash(claim.launches);
        let last = view.or_dash(claim.idle_s.map(|s| seconds(s) + " ago"));
        self.tell("launches", format!("{launches}, last {last}"));
        let refused = many(claim.refusals as usize, "allocation");
        self.tell("refused", format!("{refused} at the limit"));
        let pids = listed(&claim.members);
        self.tell("processes", if pids.is_empty() { "none" } else { &pids });
        let command = match claim.command.is_empty() {
            true => claim.what.clone(),
            false => claim.command.join(" "),
        };
        // A claim without a command runs nothing.
        if !matches!(command.as_str(), "" | "-") {
            self.tell("command", command);
        }
    }

    fn part(&mut self, claim: &ClaimView, g: &gshare_proto::ClaimGpu) {
        let view = self.view;
        let (used, n) = (view.gib(g.mem_used), g.gpu);
        if claim.adopted {
            let text = format!("{n}: {used} GiB used without a claim, without a limit");
            return self.tell("GPU", text);
        }
        let was = match claim.place.in_host() {
            true => "on no GPU now, last on ",
            false => "",
        };
        let (size, limit) = (percent(g.sm_request * 100.0), percent(g.sm_limit * 100.0));
        let text = format!("{was}{n}: size {size} %, up to {limit} %");
        self.tell("GPU", text);
        let whole = |f: Figure| about(f.estimate, format!("{:.0}", f.value));
        let fixed = |sms| format!("{} SMs, fixed when a program starts", whole(sms));
        self.tell_known("  MPS", g.mps_sms.map(fixed));
        for (label, pids, what) in [
            ("  MPS", &g.beside_mps, "outside MPS: SMs not limited"),
            (
                "  uncounted",
                &g.past_library,
                "without gshare's library: limits do not apply",
            ),
            (
                "  uncounted",
                &g.cannot_tell,
                "its launches are not counted (OptiX, OpenCL, Vulkan, OpenGL, dynamic parallelism)",
            ),
        ] {
            if !pids.is_empty() {
                self.tell(label, format!("pid {} {what}", listed(pids)));
            }
        }
        let [charged, peak] = [g.mem_charge, g.mem_peak].map(|bytes| view.gib(bytes));
        let (size, limit) = (gib(g.mem_request), gib(g.mem_limit));
        let text = format!(
            "{used} GiB used, {charged} counted (peak {peak}), claim {size}, limit {limit}"
        );
        self.tell("  memory", text);
        let driver = |gib: String| format!("uses {gib} GiB of the limit (modules, graphs, stack)");
        self.tell_known("  driver", g.mem_driver.map(gib).map(driver));
        let copied = |f: Figure| format!("{} GiB/s", gib(f.value.max(0.0) as u64));
        let copied = view.or_dash(g.copied.map(|f| about(f.estimate, copied(f))));
        let (got, throttled) = (view.percent(g.time_got), view.percent(g.throttled));
        let rate = view.or_dash(g.launch_rate.map(whole));
        let text = format!(
            "kernels ran {got} of the time, throttled {throttled}; {rate} launches/s, copies {copied}"
        );
        self.tell("  work", text);
        let text = self.activity(g.time_busy.or(g.time_got), g.sm_active, g.sm_occupancy);
        self.tell("  use", text);
    }

    /// Three figures, each with its source.
    fn activity(&self, time: Option<Figure>, sm: Option<Figure>, occ: Option<Figure>) -> String {
        let [time, sm, occ] = [time, sm, occ].map(|figure| {
            let text = self.view.percent(figure);
            match figure.filter(|f| f.source != Source::TimeBusy) {
                Some(f) => format!("{text} ({})", source(f.source)),
                None => text,
            }
        });
        format!("time {time}, SM active {sm}, occupancy {occ}")
    }

    fn owner(&mut self, user: &str, uid: u32, project: &str, class: &str) {
        let text = format!("{user} (uid {uid}), project {project}, class {class}");
        self.tell("owner", text);
    }

    fn waiting(&mut self, waiting: &QueueView) {
        let (model, look) = (self.view.model, self.view.look);
        self.owner(&waiting.user, waiting.uid, &waiting.project, &waiting.class);
        let since = waiting.since_ms;
        let (ago, at) = (model.clock.since(since), model.clock.time(since));
        let text = format!("{ago}, since {at}, place {}", waiting.position);
        self.tell("waits", text);
        let detail = waiting::detail(model, &waiting.id, look, self.cols);
        self.facts.lines.extend(detail);
    }

    fn unclaimed(&mut self, program: &UnclaimedView) {
        let view = self.view;
        let whole = self.whole_memory(program.gpu);
        self.memory(program.mem_used, 0, whole);
        let uid = program.uid.map(|uid| format!("uid {uid}"));
        let owner = match (&program.user, uid) {
            (Some(user), Some(uid)) => format!("{user} ({uid})"),
            (user, uid) => view.or_dash(user.clone().or(uid)),
        };
        self.tell("owner", owner);
        self.tell("GPU", program.gpu.to_string());
        let kind = match program.graphics {
            true => "graphics: it needs no claim",
            false => "no claim: it has no limits",
        };
        self.tell("kind", kind);
        self.tell("command", &program.what);
        let own = view.model.may(program.uid.unwrap_or(u32::MAX));
        if own && !program.graphics && view.model.service().is_ok() {
            self.tell("to claim it", format!("gshare adopt {}", program.pid));
        }
    }

    fn whole_memory(&self, gpu: u32) -> Option<u64> {
        self.view.model.gpu(gpu).and_then(GpuView::mem_whole)
    }

    fn memory(&mut self, used: Option<u64>, claim: u64, whole: Option<u64>) {
        let bullet = Bullet::bytes(used, claim, whole);
        let (used, whole) = (self.view.gib(used), self.view.gib(whole));
        let claim = match claim {
            0 => String::new(),
            bytes => format!(", claimed {}", gib(bytes)),
        };
        self.bullet("memory", bullet, format!("{used} GiB of {whole}{claim}"));
    }

    fn process(&mut self, claim: &ClaimView, process: &ProcessView) {
        let part = claim.gpus.iter().find(|g| g.gpu == process.gpu);
        let size = part.map_or(0, |g| g.mem_request);
        let whole = self.whole_memory(process.gpu);
        self.memory(process.mem_used, size, whole);
        let busy = process.time_busy.map(|busy| format!("{} %", percent(busy)));
        self.tell("GPU time", self.view.or_dash(busy));
        self.tell("GPU", process.gpu.to_string());
        self.tell("command", &process.what);
        self.claims(|c| c.id == claim.id);
    }

    fn user(&mut self, user: &UserView) {
        let view = self.view;
        // Compare like with like: use in the unit of sizes.
        let gpus = view.snapshot.gpus.iter();
        let claims = view.snapshot.claims.iter();
        let sum = sums(claims.filter(|c| c.uid == user.uid), view.snapshot);
        let bullet = Bullet {
            used: match sum.compute {
                AtLeast::Known(known) => known.map(|f| f.value),
                AtLeast::Some(sum) => Some(sum),
            },
            claim: sum.claimed,
            whole: gpus.clone().map(GpuView::part_of_a_gpu).sum::<f64>() * 100.0,
        };
        let (used, claimed) = (view.at_least(sum.compute), percent(sum.claimed));
        let words = format!("uses {used}, claims {claimed} % of a GPU");
        self.bullet("compute", bullet, words);
        // Including what the user's programs hold without a claim.
        let whole: Option<u64> = gpus.map(GpuView::mem_whole).sum();
        let programs = view.snapshot.unclaimed.iter();
        let own = programs.filter(|u| u.user.as_ref() == Some(&user.user) && !u.graphics);
        let bytes: Option<u64> = own.map(|u| u.mem_used).sum();
        let used = sum.mem_used.zip(bytes).map(|(a, b)| a + b);
        self.memory(used, sum.mem_claimed, whole);
        if user.waiting > 0.0 {
            self.tell("waits for", format!("{:.2} GPUs", user.waiting));
        }
        if let Some(day) = &user.day {
            let (sums, waited) = (tree::sums_of(&view, day), hours(day.waited_gpu_s));
            self.tell("24 hours", format!("{sums}, {waited} waited for"));
        }
        self.claims(|c| c.uid == user.uid);
    }

    fn check(&mut self, check: &Check) {
        self.tell("state", &check.state);
        self.tell("found", &check.detail);
        let seen = Some(check.status.clone()).filter(|seen| !seen.is_empty());
        self.tell_known("seen", seen);
        self.tell_known("fix", check.fix.clone());
    }

    fn health(&mut self, health: &HealthView) {
        let view = self.view;
        let grade = match health.grade {
            Grade::Good => "good",
            Grade::Warned => "warned",
            Grade::Sick => "sick: no new claims start here",
        };
        let why = health::health(&view, health);
        let text = match why.starts_with("good") {
            true => grade.to_owned(),
            false => format!("{grade}; {why}"),
        };
        self.tell("health", text);
        for xid in &health.xids {
            let pid = xid.pid.map(|p| format!(", process {p}"));
            let (at, pid) = (view.model.clock.time(xid.at_ms), pid.unwrap_or_default());
            let text = format!("{} at {at}{pid}: {}; {}", xid.code, xid.text, xid.tell);
            self.tell("  Xid", text);
        }
        let (corrected, uncorrected) = (health.ecc_corrected, health.ecc_uncorrected);
        let (corrected, uncorrected) = (view.or_dash(corrected), view.or_dash(uncorrected));
        let text = format!("{corrected} corrected, {uncorrected} uncorrected");
        self.tell("  ECC", text);
        // Whether that failed or waits for a reset is part of the health.
        let rows = health.remapped.map(|r| {
            let (corrected, uncorrected) = (r.corrected, r.uncorrected);
            format!("{corrected} corrected, {uncorrected} uncorrected")
        });
        self.tell("  remapped", view.or_dash(rows));
    }

    fn gpu(&mut self, gpu: &GpuView) {
        let view = self.view;
        let look = view.look;
        let cols = cells(self.cols.saturating_sub(LABEL).min(60));
        let slices = overview::slices(&view, gpu);
        let map = SliceMap { slices, look };
        self.picture("held", widget(map, (cols, 2), look));
        self.memory(gpu.mem_used, gpu.mem_claimed, gpu.mem_whole());
        if gpu.history.iter().any(Option::is_some) {
            let plot = spark(&gpu.history, 3, look);
            self.picture("10 minutes", widget(plot, (cols, 3), look));
        }
        let text = self.activity(gpu.time_busy, gpu.sm_active, gpu.sm_occupancy);
        self.tell("now", text);
        if view.snapshot.service.is_some() {
            let of = view.gib(gpu.mem_allocatable);
            let (held, sms) = (gib(gpu.mem_claimed), percent(gpu.sm_claimed * 100.0));
            self.tell("claimed", format!("{held} of {of} GiB, {sms} % of compute"));
            if view.snapshot.claimable_now.is_some() {
                let free = share(gpu.claimable);
                self.tell("free for you", format!("{free} of the GPU"));
            }
            self.tell("shared by", &gpu.mode);
            if let Some(drain) = &gpu.drain {
                let why = drain.reason.as_ref().map(|r| format!(": {r}"));
                let (by, why) = (&drain.by, why.unwrap_or_default());
                self.tell("drained", format!("by {by}{why}; no new claims start here"));
            }
        }
        if gpu.sm_unattributed.is_some() || gpu.occupancy_unattributed.is_some() {
            let sm = view.percent(gpu.sm_unattributed);
            let occupancy = view.percent(gpu.occupancy_unattributed);
            self.tell("no claim", format!("SM active {sm}, occupancy {occupancy}"));
        }
        let [tensor, dram] = [gpu.tensor_active, gpu.dram_active].map(|f| view.percent(f));
        self.tell("tensor, DRAM", format!("{tensor}, {dram}"));
        let links = [gpu.pcie_rx, gpu.pcie_tx, gpu.nvlink_rx, gpu.nvlink_tx];
        let link = |f: Option<Figure>| view.or_dash(f.map(|f| gib(f.value.max(0.0) as u64)));
        let [rx, tx, nv_rx, nv_tx] = links.map(link);
        let text = format!("PCIe {rx}/{tx}, NVLink {nv_rx}/{nv_tx}");
        self.tell("GiB/s in/out", text);
        let watts = |w: Option<f64>| view.or_dash(w.map(|w| format!("{w:.0} W")));
        let (power, most) = (watts(gpu.power_w), watts(gpu.power_limit_w));
        let degrees = view.degrees(gpu);
        self.tell("power, heat", format!("{power} of {most}, {degrees}"));
        if let Some(health) = &gpu.health {
            self.health(health);
        }
        let sms = view.or_dash(gpu.sms);
        let memory = view.gib(gpu.mem_total);
        self.tell("model", format!("{}, {sms} SMs, {memory} GiB", gpu.model));
        self.tell("uuid", &gpu.uuid);
        self.claims(|c| overview::is_on(c, gpu.index));
    }
}

/// `14353, 14356`.
fn listed(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}
