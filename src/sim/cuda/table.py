"""Writes src/table.rs from the functions that the sources export and the CUDA headers' versions.

Usage: python3 table.py DIRECTORY_OF_CUDA_HEADERS   (they are in the PyPI wheel nvidia-cuda-runtime)
"""
import re,glob,os,sys
src=os.path.join(os.path.dirname(os.path.abspath(__file__)),'src','')
H=os.path.join(sys.argv[1],'')
names=set()
for f in glob.glob(src+'**/*.rs',recursive=True):
    if f.endswith('table.rs'): continue
    s=open(f).read()
    names|=set(re.findall(r'extern "C" fn (cu[A-Z]\w*)',s))
    for m in re.finditer(r'^\s{4,8}(cu[A-Z]\w*) = cu',s,re.M): names.add(m.group(1))
    for m in re.finditer(r'^\s{4,8}(cu[A-Z]\w*)(?:, (cu\w+))?\(',s,re.M):
        names.add(m.group(1))
        if m.group(2): names.add(m.group(2))
td=open(H+'cudaTypedefs.h').read()
vers={}
for m in re.finditer(r'\*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)',td):
    vers.setdefault(m.group(1),set()).add((int(m.group(2)),m.group(3) or ''))
hdr=open(H+'cuda.h').read()
declared=set(re.findall(r'CUDAAPI (cu\w+)\(',hdr))
rows=[];missing=[]
vers.setdefault('cuProfilerStart',set()).add((4000,''))
vers.setdefault('cuProfilerStop',set()).add((4000,''))
for n in sorted(names):
    pt = n.endswith('_ptsz') or n.endswith('_ptds')
    core = n[:-5] if pt else n
    m=re.match(r'(.*)_v(\d)$',core)
    base,gen=(m.group(1),int(m.group(2))) if m else (core,1)
    if base not in vers:
        missing.append(n); continue
    plain=sorted(v for v,k in vers[base] if k=='')
    twins=sorted(v for v,k in vers[base] if k)
    # symbol generations that exist for the base, in order
    if pt:
        lst=twins
    else:
        lst=plain
    # generation index from end: the highest generation has the highest version
    gens=sorted({1}|{int(x) for x in re.findall(r'\b'+base+r'_v(\d)\b',hdr)})
    # drop generation 1 if typedef versions are fewer
    if len(gens)>len(lst): gens=gens[-len(lst):] if lst else []
    if gen not in gens or not lst:
        missing.append(n+' gens %s lst %s'%(gens,lst)); continue
    v=lst[-len(gens):][gens.index(gen)]
    rows.append((base,n,v,gen,pt))
if missing: print('no version known:',missing)
out='''//! Every function that programs can look up by name: base name, the CUDA version that brought it,
//! its generation (`_v2` is 2), and whether it is the twin for per-thread default streams.
//!
//! The versions are those of `cudaTypedefs.h`; a test compares the table with the exported symbols.
#![allow(
    clashing_extern_declarations,
    reason = "only the addresses are taken, so the signatures do not matter"
)]

/// One function.
#[derive(Debug)]
pub(crate) struct Row {
    pub base: &'static str,
    /// 12080 for CUDA 12.8.
    pub version: i32,
    pub generation: u8,
    pub per_thread: bool,
    pub address: Address,
}

/// The address of a function whose signature is not known here.
pub(crate) type Address = unsafe extern "C" fn();

macro_rules! table {
    ($($base:literal $symbol:ident $version:literal $generation:literal $per_thread:literal;)*) => {
        unsafe extern "C" {
            $(fn $symbol();)*
        }
        /// All rows, by base name.
        pub(crate) static TABLE: &[Row] = &[$(Row {
            base: $base,
            version: $version,
            generation: $generation,
            per_thread: $per_thread,
            address: $symbol,
        }),*];
    };
}

table! {
'''
for b,n,v,g,p in rows:
    out+=f'    "{b}" {n} {v} {g} {"true" if p else "false"};\n'
out+='}\n'
open(src+'table.rs','w').write(out)
print(len(rows))
