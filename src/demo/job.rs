//! The demo's programs: ordinary users of the CUDA driver without any knowledge of gshare. They load `libcuda.so.1`
//! by its name, as any program does.

use std::ffi::{CStr, CString};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gshare_enforcer::cuda::{Buffer, Context, CudaError, Driver, Function};

/// Hidden first argument of a job.
pub const JOB_ARGUMENT: &str = "__demo-job";

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Launches a kernel repeatedly.
    Steady {
        /// Kernel name, which the registry of durations knows.
        kernel: String,
        /// Blocks of a launch.
        grid: u32,
        /// Threads of a block.
        block: u32,
        /// MiB that it holds.
        mib: usize,
        /// Pause after each launch, in milliseconds.
        pause_ms: u64,
    },
    /// Computes with weights that it has written once, and prints their checksum repeatedly.
    Model {
        /// Kernel name, which the registry of durations knows.
        kernel: String,
        /// MiB that it holds beside its weights.
        mib: usize,
        /// MiB of its weights.
        weights_mib: usize,
        /// Pause after each launch, in milliseconds.
        pause_ms: u64,
        /// Ends when its input ends.
        ends: bool,
    },
    /// Allocates memory until it is refused, reports that, and continues with what it has.
    Hog {
        /// MiB of each step.
        step_mib: usize,
        /// Milliseconds between steps.
        every_ms: u64,
    },
    /// Computes once and then holds its memory without using the GPU, as a notebook does.
    Notebook {
        /// MiB that it holds.
        mib: usize,
    },
    /// Allocates memory, computes, and holds the memory for a while: [`TOY`] in the shell of the demo.
    Toy {
        /// MiB to allocate.
        mib: usize,
        /// Seconds of computing.
        compute_s: u64,
        /// Seconds of holding the memory afterwards.
        hold_s: u64,
    },
}

/// The program of this name is [`Job::Toy`].
pub(crate) const TOY: &str = "gshare-toy";
const TOY_USAGE: &str = "usage: gshare-toy MIB [SECONDS [HOLD]]\n\
    Takes MIB MiB of GPU memory, computes for SECONDS (1), then holds the memory for HOLD seconds (0).";

impl Job {
    /// The job of [`TOY`] with these arguments.
    ///
    /// # Errors
    /// Its usage.
    pub(crate) fn toy(args: &[String]) -> Result<Self, String> {
        let number =
            |n: usize, default| args.get(n).map_or(Some(default), |word| word.parse().ok());
        let numbers = (number(0, 0), number(1, 1), number(2, 0));
        match (args.len(), numbers) {
            (1..=3, (Some(mib), Some(compute_s), Some(hold_s))) => Ok(Self::Toy {
                mib: usize::try_from(mib).unwrap_or(usize::MAX >> 20),
                compute_s,
                hold_s,
            }),
            _ => Err(TOY_USAGE.to_owned()),
        }
    }

    /// The arguments that make [`Job::parse`] return this job.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec![JOB_ARGUMENT.to_owned()];
        match self {
            Self::Steady {
                kernel,
                grid,
                block,
                mib,
                pause_ms,
            } => {
                words.extend(["steady".to_owned(), kernel.clone()]);
                words.extend(
                    [u64::from(*grid), u64::from(*block), *mib as u64, *pause_ms]
                        .map(|n| n.to_string()),
                );
            }
            Self::Model {
                kernel,
                mib,
                weights_mib,
                pause_ms,
                ends,
            } => {
                words.extend(["model".to_owned(), kernel.clone()]);
                let numbers = [*mib as u64, *weights_mib as u64, *pause_ms];
                words.extend(numbers.map(|n| n.to_string()));
                words.push(ends.to_string());
            }
            Self::Hog { step_mib, every_ms } => {
                words.extend(["hog".to_owned(), step_mib.to_string(), every_ms.to_string()]);
            }
            Self::Notebook { mib } => words.extend(["notebook".to_owned(), mib.to_string()]),
            Self::Toy {
                mib,
                compute_s,
                hold_s,
            } => {
                let numbers = [*mib as u64, *compute_s, *hold_s];
                words = [TOY.to_owned()]
                    .into_iter()
                    .chain(numbers.map(|n| n.to_string()))
                    .collect();
            }
        }
        words
    }

    /// Reads the arguments after the hidden one.
    #[must_use]
    pub fn parse(words: &[String]) -> Option<Self> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Some(match words.as_slice() {
            ["steady", kernel, grid, block, mib, pause] => Self::Steady {
                kernel: (*kernel).to_owned(),
                grid: grid.parse().ok()?,
                block: block.parse().ok()?,
                mib: mib.parse().ok()?,
                pause_ms: pause.parse().ok()?,
            },
            ["model", kernel, mib, weights, pause, ends] => Self::Model {
                kernel: (*kernel).to_owned(),
                mib: mib.parse().ok()?,
                weights_mib: weights.parse().ok()?,
                pause_ms: pause.parse().ok()?,
                ends: ends.parse().ok()?,
            },
            ["hog", step, every] => Self::Hog {
                step_mib: step.parse().ok()?,
                every_ms: every.parse().ok()?,
            },
            ["notebook", mib] => Self::Notebook {
                mib: mib.parse().ok()?,
            },
            _ => return None,
        })
    }

    /// Runs the job; returns when it is done, or on failure.
    pub fn run(&self) -> Result<(), CudaError> {
        let driver = Driver::load(Path::new("libcuda.so.1"))?;
        let context = driver.context(0)?;
        match self {
            Self::Steady {
                kernel,
                grid,
                block,
                mib,
                pause_ms,
            } => {
                let mut work = Work::new(&context, kernel)?;
                let _held = context.alloc(mib << 20)?;
                loop {
                    work.launches(
                        if *pause_ms == 0 { AT_A_TIME } else { 1 },
                        &context,
                        *grid,
                        *block,
                    )?;
                    std::thread::sleep(Duration::from_millis(*pause_ms));
                }
            }
            Self::Model {
                kernel,
                mib,
                weights_mib,
                pause_ms,
                ends,
            } => {
                let _held = context.alloc(mib << 20)?;
                let weights = Weights::new(&context, weights_mib << 20)?;
                let pause = Duration::from_millis(*pause_ms);
                let done = Arc::new(AtomicBool::new(false));
                if *ends {
                    when_input_ends(&done);
                }
                model(&context, kernel, &weights, pause, &done)
            }
            Self::Hog { step_mib, every_ms } => {
                hog(&context, step_mib << 20, Duration::from_millis(*every_ms))
            }
            Self::Notebook { mib } => {
                let mut work = Work::new(&context, "notebook_cell")?;
                let _held = context.alloc(mib << 20)?;
                work.launch(&context, 64, 128)?;
                loop {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            }
            Self::Toy {
                mib,
                compute_s,
                hold_s,
            } => {
                let seconds = Duration::from_secs;
                toy(&context, mib << 20, seconds(*compute_s), seconds(*hold_s))
            }
        }
    }
}

fn toy(
    context: &Context,
    bytes: usize,
    compute: Duration,
    hold: Duration,
) -> Result<(), CudaError> {
    let (_, total) = context.memory()?;
    let say = |text: &str| {
        let _ = writeln!(std::io::stdout(), "{TOY}: {text}");
    };
    let _held = context.alloc(bytes)?;
    let total = gshare_core::Bytes(total as u64);
    say(&format!("took {} MiB; the GPU shows {total}", bytes >> 20));
    let mut work = Work::new(context, "toy_step")?;
    let begun = Instant::now();
    while begun.elapsed() < compute {
        work.launches(AT_A_TIME, context, 512, 256)?;
    }
    let launched = work.launched;
    say(&format!(
        "launched {launched} kernels in {} s",
        compute.as_secs()
    ));
    if !hold.is_zero() {
        say(&format!("holds its memory for {} s", hold.as_secs()));
        std::thread::sleep(hold);
    }
    Ok(())
}

/// Time between two checksums of a model's weights.
const CHECKSUM: Duration = Duration::from_millis(500);

/// Sets it when the input ends; the input itself is ignored.
fn when_input_ends(done: &Arc<AtomicBool>) {
    let done = Arc::clone(done);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        done.store(true, Ordering::Relaxed);
    });
}

fn model(
    context: &Context,
    kernel: &str,
    weights: &Weights,
    pause: Duration,
    done: &AtomicBool,
) -> Result<(), CudaError> {
    let mut work = Work::new(context, kernel)?;
    let mut next = Instant::now();
    while !done.load(Ordering::Relaxed) {
        // Several launches at a time, as in training, so that the GPU has work while the processor runs other
        // programs.
        work.launches(AT_A_TIME, context, 528, 256)?;
        std::thread::sleep(pause);
        if Instant::now() >= next {
            let sum = weights.checksum(context)?;
            let _ = writeln!(std::io::stdout(), "{WEIGHTS}{sum:016x}");
            next = Instant::now() + CHECKSUM;
        }
    }
    Ok(())
}

/// Launches of a busy job between two checks of its results.
const AT_A_TIME: u64 = 4;
/// Beginning of a line with the checksum of a model's weights.
pub(super) const WEIGHTS: &str = "checksum of the weights ";

/// Memory with known contents.
struct Weights {
    buffer: Buffer,
}

impl Weights {
    fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let buffer = context.alloc(bytes)?;
        let own = u64::from(std::process::id());
        let words = (0..bytes as u64 / 8).map(|i| (i ^ own).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let data: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        context.write(buffer, &data)?;
        Ok(Self { buffer })
    }

    /// Checksum of the present contents of the GPU's memory.
    fn checksum(&self, context: &Context) -> Result<u64, CudaError> {
        let mut data = vec![0; self.buffer.bytes];
        context.read(self.buffer, &mut data)?;
        let words = data.chunks_exact(8).map(|w| {
            let mut word = [0; 8];
            word.copy_from_slice(w);
            u64::from_le_bytes(word)
        });
        Ok(words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
            (sum ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(17)
        }))
    }
}

fn hog(context: &Context, step: usize, every: Duration) -> Result<(), CudaError> {
    let mut work = Work::new(context, "train_step")?;
    let mut held: Vec<Buffer> = Vec::new();
    let mut next = Instant::now() + every;
    let mut full = false;
    loop {
        work.launches(AT_A_TIME, context, 256, 128)?;
        if full || Instant::now() < next {
            continue;
        }
        next = Instant::now() + every;
        match context.alloc(step) {
            Ok(buffer) => held.push(buffer),
            Err(error) if error.is_out_of_memory() => {
                let _ = writeln!(
                    std::io::stderr(),
                    "train.py: RuntimeError: CUDA out of memory: tried to allocate {} MiB with {} MiB allocated ({error})",
                    step >> 20,
                    held.iter().map(|b| b.bytes).sum::<usize>() >> 20
                );
                full = true;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A kernel that counts its launches in device memory, as a proof of its work.
struct Work {
    function: Function,
    counter: Buffer,
    launched: u64,
}

impl Work {
    fn new(context: &Context, name: &str) -> Result<Self, CudaError> {
        let (text, c_name) = program(name);
        let function = context.kernel(&text, &c_name)?;
        let counter = context.alloc(8)?;
        context.write(counter, &0u64.to_le_bytes())?;
        Ok(Self {
            function,
            counter,
            launched: 0,
        })
    }

    fn launch(&mut self, context: &Context, grid: u32, block: u32) -> Result<(), CudaError> {
        self.launches(1, context, grid, block)
    }

    fn launches(
        &mut self,
        count: u64,
        context: &Context,
        grid: u32,
        block: u32,
    ) -> Result<(), CudaError> {
        for _ in 0..count {
            context.launch(self.function, grid, block, &mut [self.counter.address])?;
        }
        context.synchronize()?;
        self.launched += count;
        let mut found = [0; 8];
        context.read(self.counter, &mut found)?;
        assert_eq!(
            u64::from_le_bytes(found),
            self.launched,
            "the GPU computed something else"
        );
        Ok(())
    }
}

/// PTX of a kernel of this name: its first thread adds one to its argument's word.
fn program(name: &str) -> (CString, CString) {
    let text = format!(
        ".version 7.0\n.target sm_50\n.address_size 64\n\
         .visible .entry {name}(.param .u64 counter)\n{{\n\
         .reg .pred %p;\n.reg .b32 %r<3>;\n.reg .b64 %rd<3>;\n\
         mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %p, %r1, 0;\n@%p bra done;\n\
         mov.u32 %r2, %tid.x;\nsetp.ne.u32 %p, %r2, 0;\n@%p bra done;\n\
         ld.param.u64 %rd1, [counter];\ncvta.to.global.u64 %rd1, %rd1;\n\
         ld.global.u64 %rd2, [%rd1];\nadd.u64 %rd2, %rd2, 1;\nst.global.u64 [%rd1], %rd2;\n\
         done:\nret;\n}}\n"
    );
    // Neither has a NUL: the names are constants of this module.
    (
        CString::new(text).unwrap_or_default(),
        CString::new(name).unwrap_or_else(|_| CStr::to_owned(c"kernel")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_round_trip() {
        for job in [
            Job::Steady {
                kernel: "k".into(),
                grid: 1,
                block: 2,
                mib: 3,
                pause_ms: 4,
            },
            Job::Hog {
                step_mib: 5,
                every_ms: 6,
            },
            Job::Notebook { mib: 7 },
            Job::Model {
                kernel: "m".into(),
                mib: 1,
                weights_mib: 2,
                pause_ms: 3,
                ends: true,
            },
        ] {
            let words = job.arguments();
            assert_eq!(words[0], JOB_ARGUMENT);
            assert_eq!(Job::parse(&words[1..]), Some(job));
        }
        assert_eq!(Job::parse(&["hog".to_owned()]), None);
        let toy = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Job::toy(&words).map(|job| job.arguments()[1..].join(" "))
        };
        assert_eq!(toy("512").as_deref(), Ok("512 1 0"));
        assert_eq!(toy("512 3 60").as_deref(), Ok("512 3 60"));
        for wrong in ["", "4G", "1 2 3 4", "1 -1"] {
            assert_eq!(toy(wrong), Err(TOY_USAGE.to_owned()), "{wrong}");
        }
    }
}
