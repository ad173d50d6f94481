//! Program images: PTX text, containers with PTX inside, and machine code.
//!
//! Images come as bare pointers, so their beginning determines their length.

use gshare_sim_ptx::Module as Ptx;

use crate::code::{FILE_NOT_FOUND, INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, R};
use crate::driver::note_once;
use crate::elf;
use crate::fatbin;
use crate::ffi::In;

/// Known facts about a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelFacts {
    pub name: String,
    /// Offset and size of each parameter in bytes.
    pub params: Vec<(usize, usize)>,
    pub param_bytes: usize,
    pub regs: u32,
    pub shared: u32,
    pub local: u32,
    pub max_threads: u32,
}

/// A program that can be loaded.
#[derive(Debug, Clone)]
pub(crate) enum Image {
    /// PTX texts of one program.
    Ptx(Vec<String>),
    /// Machine code: its kernels only take time.
    Code(Vec<KernelFacts>),
}

/// Registers per thread of a kernel in PTX. The simulation has no assembler to choose the number; 32 allow a full GPU.
const REGISTERS: u32 = 32;

/// First line of the linker's output for several texts; their lengths follow.
const LINKED: &str = "//linked-ptx";

/// The image at a program's pointer.
pub(crate) fn at(image: In<u8>) -> R<Image> {
    // Byte by byte: a text may end before the fourth.
    let mut head = [0; 4];
    for (i, b) in head.iter_mut().enumerate() {
        *b = image.at(i)?;
        if *b == 0 {
            break;
        }
    }
    match u32::from_le_bytes(head) {
        fatbin::WRAPPER => {
            let data = In::<u64>::from_addr(image.addr() + 8).get()?;
            at(In::from_addr(data))
        }
        fatbin::CONTAINER => {
            let header = image.bytes(fatbin::HEADER)?;
            let whole = image.bytes(fatbin::length(header).ok_or(INVALID_IMAGE)?)?;
            of_container(whole)
        }
        elf::MAGIC => {
            let header = image.bytes(elf::HEADER)?;
            let whole = image.bytes(elf::length(header).ok_or(INVALID_IMAGE)?)?;
            of_bytes(whole)
        }
        _ => {
            let text = In::<std::ffi::c_char>::from_addr(image.addr()).text()?;
            of_bytes(text.to_bytes())
        }
    }
}

pub(crate) fn of_bytes(bytes: &[u8]) -> R<Image> {
    let head = bytes
        .first_chunk::<4>()
        .map_or(0, |h| u32::from_le_bytes(*h));
    if head == fatbin::CONTAINER {
        return of_container(bytes);
    }
    if head == elf::MAGIC {
        let kernels = elf::kernels(bytes).ok_or(INVALID_IMAGE)?;
        note_once("machine code without PTX: its kernels take time and compute nothing");
        return Ok(Image::Code(kernels));
    }
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| INVALID_IMAGE)?;
    if let Some(linked) = text.strip_prefix(LINKED) {
        return unlink(linked).ok_or(INVALID_IMAGE);
    }
    if !text.contains(".version") {
        return Err(INVALID_IMAGE);
    }
    Ok(Image::Ptx(vec![text.to_owned()]))
}

fn of_container(bytes: &[u8]) -> R<Image> {
    let entries = fatbin::entries(bytes).ok_or(INVALID_IMAGE)?;
    // A compiler targets the newest GPUs with the text of the highest architecture.
    let ptx = entries.iter().filter(|e| e.is_ptx);
    if let Some(best) = ptx.max_by_key(|e| e.architecture) {
        return of_bytes(&best.data);
    }
    match entries.iter().max_by_key(|e| e.architecture) {
        Some(best) => of_bytes(&best.data),
        None => Err(NO_BINARY_FOR_GPU),
    }
}

/// The linker's output for several texts.
pub(crate) fn linked(texts: &[String]) -> String {
    if let [one] = texts {
        return one.clone();
    }
    let lengths: Vec<String> = texts.iter().map(|t| t.len().to_string()).collect();
    format!("{LINKED} {}\n{}", lengths.join(" "), texts.concat())
}

fn unlink(rest: &str) -> Option<Image> {
    let (lengths, mut texts) = rest.split_once('\n')?;
    let mut list = Vec::new();
    for length in lengths.split_whitespace() {
        let (text, after) = texts.split_at_checked(length.parse().ok()?)?;
        list.push(text.to_owned());
        texts = after;
    }
    Some(Image::Ptx(list))
}

pub(crate) fn of_file(path: &str) -> R<Image> {
    let bytes = std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?;
    of_bytes(&bytes)
}

/// A loaded program: its kernels, and the interpreter's form if there is PTX.
#[derive(Debug)]
pub(crate) struct Program {
    pub kernels: Vec<KernelFacts>,
    pub ptx: Option<Ptx>,
}

impl Image {
    /// Parses and links; the second part of an error is for the program's log buffer.
    pub(crate) fn load(&self) -> Result<Program, (u32, String)> {
        match self {
            Image::Code(kernels) => Ok(Program {
                kernels: kernels.clone(),
                ptx: None,
            }),
            Image::Ptx(texts) => {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let ptx = Ptx::link(&texts).map_err(|e| (INVALID_PTX, e.to_string()))?;
                let kernels = ptx.kernels().map(|k| KernelFacts {
                    name: k.name.clone(),
                    params: k.params.clone(),
                    param_bytes: k.param_bytes,
                    regs: REGISTERS,
                    shared: k.shared_bytes,
                    local: k.local_bytes,
                    max_threads: k.max_threads,
                });
                Ok(Program {
                    kernels: kernels.collect(),
                    ptx: Some(ptx),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(image: R<Image>) -> Vec<String> {
        match image {
            Ok(Image::Ptx(texts)) => texts,
            other => panic!("not PTX: {other:?}"),
        }
    }

    #[test]
    fn text_containers_and_linked_texts() {
        let a = ".version 8.0\n.target sm_80\n".to_owned();
        let b = ".version 8.1\n.target sm_90\n// two\n".to_owned();
        assert_eq!(texts(of_bytes(a.as_bytes())), std::slice::from_ref(&a));
        let with_nul = format!("{a}\0rest");
        assert_eq!(
            texts(of_bytes(with_nul.as_bytes())),
            std::slice::from_ref(&a)
        );
        let both = linked(&[a.clone(), b.clone()]);
        assert_eq!(texts(of_bytes(both.as_bytes())), [a.clone(), b.clone()]);
        assert_eq!(linked(std::slice::from_ref(&a)), a);
        let packed =
            fatbin::tests::container(&[(true, 80, a.as_bytes()), (true, 90, b.as_bytes())]);
        assert_eq!(texts(of_bytes(&packed)), [b]);
        for bad in [&b"hello"[..], b"", b"\x7fELF", b"\x50\xed\x55\xba\x01"] {
            assert_eq!(of_bytes(bad).err(), Some(INVALID_IMAGE), "{bad:?}");
        }
    }

    #[test]
    fn an_image_is_found_through_its_pointer() {
        let text = c".version 8.0\n.target sm_80\n";
        let found = texts(at(In::from_addr(text.as_ptr() as u64)));
        assert_eq!(found, [text.to_str().expect("text")]);
        let packed = fatbin::tests::container(&[(true, 80, text.to_bytes())]);
        let wrapper = [
            u64::from(fatbin::WRAPPER) | 1 << 32,
            packed.as_ptr() as u64,
            0,
        ];
        let found = texts(at(In::from_addr(wrapper.as_ptr() as u64)));
        assert_eq!(found, [text.to_str().expect("text")]);
    }
}
