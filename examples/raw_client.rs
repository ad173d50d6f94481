//! A CUDA program that does what its standard input says, one command a line, one answer a line: the tests'
//! client whose every byte is known. It knows nothing of gshare. Its argument is the driver's library, `libcuda.so.1`
//! where there is none. With a second one, another library, `around N` launches by that.
//!
//! Commands: `alloc BYTES`, `free INDEX`, `fill INDEX SEED` and `sum INDEX` (of the first 4 MiB), `fill-all SEED` and
//! `sum-all` (of every byte that it holds), `managed BYTES`, `module BYTES` (one with a variable of so many), `info`, `launch N`, `start N` (launches
//! that nobody waits for), `parents N VARIABLE` (launches with pauses of `parent`, beside which its module has such a variable), `around N`, `around alloc BYTES`, `stack BYTES` (of each thread), `graphs KERNELS TIMES` (executable ones),
//! `count`, `sms`, `mps`, `uuid`, `fault`, `sync`, `ping`, `device N` (what follows is on that one), `share INDEX`,
//! `multicast`, `import` (memory of another driver), `watch MS` (from now on another thread asks how many devices there are, so often), `watched` (how often it has),
//! `quit`. Answers: `ok ...` or `error CODE NAME`.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gshare_enforcer::cuda::{Buffer, Context, CudaError, Driver, Function, Sharing, Streams};

const PTX: &std::ffi::CStr = c".version 7.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .u64 p)
{
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [p];
ld.global.u64 %rd2, [%rd1];
add.u64 %rd2, %rd2, 1;
st.global.u64 [%rd1], %rd2;
ret;
}
";

const NOTHING: &std::ffi::CStr = c".version 7.0
.target sm_50
.address_size 64
.visible .entry nothing()
{
ret;
}
";

/// How often the watching thread has asked.
static WATCHED: AtomicU64 = AtomicU64::new(0);

struct Client {
    device: i32,
    context: Context,
    /// Contexts on other devices.
    others: Vec<(i32, Context)>,
    held: Vec<Option<Buffer>>,
    kernel: Option<(Function, Buffer)>,
    around: Option<Box<Client>>,
}

/// Attributes of a device, by the numbers of `CUdevice_attribute`.
const MULTIPROCESSOR_COUNT: i32 = 16;
const MPS_ENABLED: i32 = 133;

impl Client {
    fn kernel(&mut self) -> Result<(Function, Buffer), CudaError> {
        if let Some(pair) = self.kernel {
            return Ok(pair);
        }
        let pair = (
            self.context.kernel(PTX, c"add_one")?,
            self.context.alloc(8)?,
        );
        self.context.write(pair.1, &[0; 8])?;
        self.kernel = Some(pair);
        Ok(pair)
    }

    /// All that it holds, a few MiB at a time.
    fn each_piece(
        &self,
        mut each: impl FnMut(&Context, Buffer) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        for buffer in self.held.iter().flatten() {
            for at in (0..buffer.bytes).step_by(MOST) {
                let piece = Buffer {
                    address: buffer.address + at as u64,
                    bytes: (buffer.bytes - at).min(MOST),
                };
                each(&self.context, piece)?;
            }
        }
        Ok(())
    }

    fn buffer(&self, index: &str) -> Option<Buffer> {
        *self.held.get(index.parse::<usize>().ok()?)?
    }

    fn obey(&mut self, driver: Driver, line: &str) -> Result<String, CudaError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words.as_slice() {
            ["alloc", bytes] => {
                let buffer = self.context.alloc(bytes.parse().unwrap_or(0))?;
                self.held.push(Some(buffer));
                format!("ok {}", self.held.len() - 1)
            }
            ["free", index] => {
                let slot = index
                    .parse::<usize>()
                    .ok()
                    .and_then(|i| self.held.get_mut(i))
                    .and_then(Option::take);
                match slot {
                    Some(buffer) => {
                        self.context.free(buffer)?;
                        "ok".to_owned()
                    }
                    None => "error 0 NO_SUCH_INDEX".to_owned(),
                }
            }
            ["fill", index, seed] => match (self.buffer(index), seed.parse::<u64>()) {
                (Some(buffer), Ok(seed)) => {
                    let bytes = pattern(seed, buffer.bytes.min(MOST));
                    self.context.write(buffer, &bytes)?;
                    "ok".to_owned()
                }
                _ => "error 0 NO_SUCH_INDEX".to_owned(),
            },
            ["sum", index] => match self.buffer(index) {
                Some(buffer) => {
                    let mut bytes = vec![0; buffer.bytes.min(MOST)];
                    self.context.read(buffer, &mut bytes)?;
                    format!("ok {}", sum(&bytes))
                }
                None => "error 0 NO_SUCH_INDEX".to_owned(),
            },
            ["fill-all", seed] => {
                let mut state = seed.parse::<u64>().unwrap_or(0);
                // Pages that differ in their first bytes: whole ones are copied, which is quick without optimisation, too.
                let page: Vec<u8> = (0..PAGE / 8)
                    .flat_map(|_| next(&mut state).to_ne_bytes())
                    .collect();
                self.each_piece(|context, piece| {
                    let mut bytes = page.repeat(piece.bytes.div_ceil(PAGE));
                    for page in bytes.chunks_mut(PAGE) {
                        page[..8].copy_from_slice(&next(&mut state).to_ne_bytes());
                    }
                    context.write(piece, &bytes[..piece.bytes])
                })?;
                "ok".to_owned()
            }
            ["sum-all"] => {
                let (mut all, mut bytes) = (0u64, 0);
                self.each_piece(|context, piece| {
                    let mut words = vec![0; piece.bytes];
                    context.read(piece, &mut words)?;
                    bytes += piece.bytes;
                    for word in words.chunks(8) {
                        let mut eight = [0; 8];
                        eight[..word.len()].copy_from_slice(word);
                        let word = u64::from_ne_bytes(eight);
                        all = (all.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
                    }
                    Ok(())
                })?;
                format!("ok {all} of {bytes} bytes")
            }
            ["managed", bytes] => {
                self.context.alloc_managed(bytes.parse().unwrap_or(0))?;
                "ok".to_owned()
            }
            ["module", bytes] => {
                let variable = format!(".visible .global .align 8 .b8 large[{bytes}];\n.visible");
                let ptx = PTX.to_string_lossy().replacen(".visible", &variable, 1);
                let ptx = std::ffi::CString::new(ptx).unwrap_or_default();
                self.context.kernel(&ptx, c"add_one")?;
                "ok".to_owned()
            }
            ["stack", bytes] => {
                self.context.set_stack(bytes.parse().unwrap_or(0))?;
                "ok".to_owned()
            }
            ["graphs", kernels, times] => {
                let [kernels, times] = [kernels, times].map(|n| n.parse::<u32>().unwrap_or(0));
                let nothing = self.context.kernel(NOTHING, c"nothing")?;
                let streams = Streams::of(&self.context)?;
                let stream = streams.stream()?;
                for _ in 0..times {
                    streams.graph(stream, || {
                        (0..kernels).try_for_each(|_| streams.launch(nothing, stream))
                    })?;
                }
                "ok".to_owned()
            }
            ["ping"] => "ok pong".to_owned(),
            ["share", index] => match self.buffer(index) {
                Some(buffer) => {
                    Sharing::of(&self.context)?.memory(buffer)?;
                    "ok".to_owned()
                }
                None => "error 0 NO_SUCH_INDEX".to_owned(),
            },
            ["import"] => {
                // Of what it is the simulated driver does not ask.
                let memory = std::fs::File::open("/dev/null")
                    .map_err(|_| CudaError::Missing("/dev/null"))?;
                Sharing::of(&self.context)?.import(memory.into())?;
                "ok".to_owned()
            }
            ["multicast"] => {
                Sharing::of(&self.context)?.multicast()?;
                "ok".to_owned()
            }
            ["watch", pause] => {
                let pause = Duration::from_millis(pause.parse().unwrap_or(100));
                let device = self.device;
                let library = std::env::args_os().nth(1);
                let library = library.unwrap_or_else(|| "libcuda.so.1".into());
                std::thread::spawn(move || {
                    let Ok(driver) = Driver::load(Path::new(&library)) else {
                        return;
                    };
                    while driver.attribute(device, MULTIPROCESSOR_COUNT).is_ok() {
                        WATCHED.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(pause);
                    }
                });
                "ok".to_owned()
            }
            ["watched"] => format!("ok {}", WATCHED.load(Ordering::Relaxed)),
            ["info"] => {
                let (free, total) = self.context.memory()?;
                format!("ok {free} {total}")
            }
            ["launch", times] => {
                let (kernel, counter) = self.kernel()?;
                for _ in 0..times.parse::<u32>().unwrap_or(0) {
                    self.context.launch(kernel, 1, 1, &mut [counter.address])?;
                }
                self.context.synchronize()?;
                let mut found = [0; 8];
                self.context.read(counter, &mut found)?;
                format!("ok {}", u64::from_le_bytes(found))
            }
            ["start", times] => {
                let (kernel, counter) = self.kernel()?;
                for _ in 0..times.parse::<u32>().unwrap_or(0) {
                    self.context.launch(kernel, 1, 1, &mut [counter.address])?;
                }
                "ok".to_owned()
            }
            ["parents", times, runtime] => {
                let runtime = format!(".visible .global .align 4 .b32 {runtime};\n.visible");
                let ptx = PTX.to_string_lossy().replacen(".visible", &runtime, 1);
                let ptx = ptx.replace("add_one", "parent");
                let ptx = std::ffi::CString::new(ptx).unwrap_or_default();
                let kernel = self.context.kernel(&ptx, c"parent")?;
                let counter = self.context.alloc(8)?;
                for _ in 0..times.parse::<u32>().unwrap_or(0) {
                    self.context.launch(kernel, 1, 1, &mut [counter.address])?;
                    std::thread::sleep(Duration::from_millis(10));
                }
                "ok".to_owned()
            }
            ["device", index] => {
                let index = index.parse().unwrap_or(0);
                let known = self.others.iter().position(|(i, _)| *i == index);
                let next = match known {
                    Some(at) => self.others.swap_remove(at).1,
                    None if index == self.device => return Ok("ok".to_owned()),
                    None => driver.context(index)?,
                };
                let last = std::mem::replace(&mut self.context, next);
                self.others
                    .push((std::mem::replace(&mut self.device, index), last));
                self.kernel = None;
                "ok".to_owned()
            }
            ["around", what @ ..] => {
                let around = match &mut self.around {
                    Some(around) => around,
                    none => {
                        let library = std::env::args_os().nth(2).unwrap_or_default();
                        let driver = Driver::load(Path::new(&library))?;
                        none.insert(Box::new(Self {
                            context: driver.context(0)?,
                            held: Vec::new(),
                            kernel: None,
                            around: None,
                            device: 0,
                            others: Vec::new(),
                        }))
                    }
                };
                let what = match what {
                    [times] => format!("launch {times}"),
                    words => words.join(" "),
                };
                around.obey(driver, &what)?
            }
            ["sms"] => format!("ok {}", driver.attribute(0, MULTIPROCESSOR_COUNT)?),
            ["mps"] => format!("ok {}", driver.attribute(0, MPS_ENABLED)?),
            ["uuid"] => format!("ok {}", driver.uuid(0)?),
            ["fault"] => {
                let (kernel, _) = self.kernel()?;
                self.context.launch(kernel, 1, 1, &mut [0])?;
                self.context.synchronize()?;
                "ok".to_owned()
            }
            ["sync"] => {
                self.context.synchronize()?;
                "ok".to_owned()
            }
            ["count"] => format!("ok {}", driver.device_count()?),
            _ => "error 0 UNKNOWN_COMMAND".to_owned(),
        })
    }
}

/// Most bytes of a buffer that are filled and summed by `fill` and `sum`, and those of a piece of all.
const MOST: usize = 4 << 20;
const PAGE: usize = 4096;

/// Bytes that depend on a seed and on their place.
fn pattern(mut seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend_from_slice(&next(&mut seed).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The next of some numbers that do not repeat.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn answer(result: Result<String, CudaError>) -> String {
    match result {
        Ok(text) => text,
        Err(CudaError::Call { code, name, .. }) => format!("error {code} {name}"),
        Err(other) => format!("error -1 {other}"),
    }
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    let library = std::env::args_os().nth(1);
    let library = library.unwrap_or_else(|| "libcuda.so.1".into());
    let started = Driver::load(Path::new(&library)).and_then(|d| d.context(0).map(|c| (d, c)));
    let (driver, context) = match started {
        Ok(pair) => pair,
        Err(error) => {
            writeln!(out, "{}", answer(Err(error)))?;
            return Ok(());
        }
    };
    writeln!(out, "ok ready")?;
    let mut client = Client {
        device: 0,
        context,
        others: Vec::new(),
        held: Vec::new(),
        kernel: None,
        around: None,
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        writeln!(out, "{}", answer(client.obey(driver, &line)))?;
    }
    Ok(())
}
