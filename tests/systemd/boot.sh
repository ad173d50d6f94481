#!/bin/bash
# Becomes systemd, PID 1 of its own namespaces, on an overlay over a directory with Debian.
# usage, in new mount, pid, uts, ipc and cgroup namespaces: boot.sh ROOT WORK unified|hybrid
set -eu
root=$1 work=$2 cgroups=$3
mount --make-rprivate /
mkdir -p "$work/up" "$work/tmp" "$work/at"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/up,workdir=$work/tmp" "$work/at"
cd "$work/at"
mount -t proc proc proc
mount --rbind /sys sys
umount -R sys/fs/cgroup 2>/dev/null || true
if [ "$cgroups" = hybrid ]; then
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/unified sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    # shellcheck disable=SC2046 # two numbers
    mknod -m 666 "dev/$node" c $(stat -c '0x%t 0x%T' "/dev/$node")
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/old
pivot_root . run/old
cd /
# Debian 11 has its programs at other places than the host.
hash -r
umount -l run/old
rmdir run/old
exec env -i container=gshare-test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    /lib/systemd/systemd systemd.unit=multi-user.target
