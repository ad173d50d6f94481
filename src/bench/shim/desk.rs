//! A miniature claim in one temporary directory: the pages, the registration socket, and the driver with the proxy in
//! front of it.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use gshare_abi::GpuUuid;
use gshare_abi::host::{Doorbell, LimitsFile, LimitsInit, UsageMemfd};
use gshare_abi::send_with_fds;
use gshare_abi::wire::{Answer, Request, Seat, read_request};
use gshare_artifacts::Mode;

use super::child::Scene;

/// The claim's id.
const CLAIM: u64 = 3;
/// Connects limits and usage of a grant.
const TOKEN: u64 = 42;
/// Memory limit of the claim on each GPU in bytes: more than is used here, less than the driver has.
pub(super) const CAP: u64 = 1 << 40;
/// Memory of a context, in bytes.
const OVERHEAD: u64 = 300 << 20;
/// Number of other processes in the claim, and bytes that each holds.
const NEIGHBOURS: u32 = 3;
const HELD_BY_NEIGHBOUR: u64 = 1 << 30;

/// The arbiter's first decision on a shared GPU: the others are idle, launches may pass.
const SHARED: u32 = 4 | 1;

struct Page {
    uuid: GpuUuid,
    limits: LimitsFile,
    usage: UsageMemfd,
    doorbell: Doorbell,
}

pub(super) struct Desk {
    directory: tempfile::TempDir,
    pages: Arc<Mutex<Vec<Page>>>,
}

impl Desk {
    /// Creates everything, and answers registrations from now on.
    pub(super) fn open(scene: Scene) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("gshare-bench-")
            .tempdir()
            .context("cannot make a temporary directory")?;
        let mut pages = Vec::new();
        for gpu in 0..scene.gpus() {
            let page = Page::make(&directory, gpu).context("cannot make the claim's pages")?;
            if scene == Scene::Shared {
                page.limits.set_turn(SHARED, 0..0, 0, 0, true);
            }
            pages.push(page);
        }
        let desk = Self {
            directory,
            pages: Arc::new(Mutex::new(pages)),
        };
        let real = desk.driver();
        std::fs::create_dir(desk.directory.path().join("real"))?;
        std::fs::write(&real, gshare_artifacts::NOOP_CUDA)
            .with_context(|| format!("cannot write {}", real.display()))?;
        let socket = desk.directory.path().join("s");
        let shim = desk.directory.path().join("shim");
        gshare_artifacts::stage_shim(&shim, &real, &socket, Mode::Preload)
            .context("cannot stage the proxy")?;
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let pages = Arc::clone(&desk.pages);
        // The thread ends with this process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut pages = pages.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = register(stream, &mut pages) {
                    crate::command::out::note(&format!("a registration failed: {error:#}"));
                }
            }
        });
        Ok(desk)
    }

    pub(super) fn driver(&self) -> PathBuf {
        self.directory.path().join("real/libcuda.so.1")
    }

    pub(super) fn shim(&self) -> PathBuf {
        self.directory.path().join("shim/libcuda.so.1")
    }

    /// Whether the pages recorded what the process did: a proxy that does nothing would be fast.
    pub(super) fn check(&self, launches: u64, allocations: u64) -> anyhow::Result<()> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut counted, mut live) = (0, 0);
        for page in pages.iter() {
            for slot in page.usage.read_slots(CAP) {
                counted += slot.launches;
                live += slot.allocations;
            }
        }
        anyhow::ensure!(
            counted == launches,
            "the claim's page counts {counted} launches, the program made {launches}"
        );
        anyhow::ensure!(
            live == allocations,
            "the claim's page counts {live} live allocations, the program holds {allocations}"
        );
        Ok(())
    }
}

impl Page {
    fn make(directory: &tempfile::TempDir, gpu: u8) -> anyhow::Result<Self> {
        let uuid = GpuUuid(gshare_sim_noop::uuid(gpu));
        let init = LimitsInit {
            claim: CLAIM,
            uuid,
            token: TOKEN,
            epoch: 1,
            memory_cap_bytes: CAP,
            memory_request_bytes: CAP,
            context_overhead_bytes: OVERHEAD,
            ..LimitsInit::default()
        };
        let limits = LimitsFile::create(&directory.path().join(uuid.to_string()), &init)?;
        let mut usage = UsageMemfd::create(CLAIM, uuid, TOKEN)?;
        for neighbour in 1..=NEIGHBOURS {
            let seat = usage.assign_slot(neighbour, 1)?;
            usage.page().slots[seat.slot]
                .charge
                .store(HELD_BY_NEIGHBOUR, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(Self {
            uuid,
            limits,
            usage,
            doorbell: Doorbell::new()?,
        })
    }
}

fn register(mut stream: UnixStream, pages: &mut [Page]) -> anyhow::Result<()> {
    let Request::Register(request) = read_request(&mut stream)? else {
        anyhow::bail!("no registration");
    };
    let mut seats = Vec::new();
    let mut limits = Vec::new();
    for page in pages.iter_mut() {
        // The start time distinguishes processes with the same id; here it is one process.
        let seat = page.usage.assign_slot(request.pid, 1)?;
        seats.push(Seat {
            uuid: page.uuid,
            slot: seat.slot,
            generation: seat.generation,
        });
        limits.push(page.limits.member_fd()?);
    }
    let mut fds = Vec::new();
    for (page, limits) in pages.iter().zip(&limits) {
        fds.push(limits.as_fd());
        fds.push(page.usage.fd());
    }
    fds.extend(pages.iter().map(|page| page.doorbell.member_fd()));
    let message = Answer::Member {
        claim: CLAIM,
        name: format!("c{CLAIM}"),
        gpus: seats,
        env: Vec::new(),
    }
    .bytes();
    let sent = send_with_fds(stream.as_fd(), &message, &fds)?;
    stream.write_all(&message[sent..])?;
    Ok(())
}
