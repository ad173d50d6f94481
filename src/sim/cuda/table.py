"""Writes the list in src/table.rs from the functions that the sources export and their versions in the CUDA headers.

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
    # versions of the base symbol, in order
    if pt:
        lst=twins
    else:
        lst=plain
    # counted from the end: the highest generation has the highest version
    gens=sorted({1}|{int(x) for x in re.findall(r'\b'+base+r'_v(\d)\b',hdr)})
    # drop the oldest generations if the typedefs have fewer versions
    if len(gens)>len(lst): gens=gens[-len(lst):] if lst else []
    if gen not in gens or not lst:
        missing.append(n+' gens %s lst %s'%(gens,lst)); continue
    v=lst[-len(gens):][gens.index(gen)]
    rows.append((base,n,v,gen,pt))
if missing: print('no version known:',missing)
import textwrap
by={}
for b,n,v,g,p in rows:
    by.setdefault(v,[]).append(n)
text=open(src+'table.rs').read()
out=text[:text.index('\ntable! {\n')+len('\ntable! {\n')]
for v in sorted(by):
    lines=textwrap.wrap(' '.join(by[v]),112)
    short=len(lines[0])+len(str(v))+6<=119
    out+=f'    {v}:'+(' ' if short else '\n        ')+'\n        '.join(lines)+';\n'
out+='}\n'
open(src+'table.rs','w').write(out)
print(len(rows))
