#!/bin/busybox sh
# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The first program of the virtual machine: it prepares what programs expect
# to find, loads modules, runs the command, and hands back its exit code and
# the files that were asked for. /vm/conf and /vm/run come with the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf 2>/dev/null
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
hostname vm
ip link set lo up
modprobe -qa virtio_pci virtio_console
. /vm/conf
modprobe -qa $MODULES

# port prints the device of a port by its name.
port() {
	for p in /sys/class/virtio-ports/*; do
		[ "$(cat "$p/name" 2>/dev/null)" = "$1" ] && echo "/dev/${p##*/}" && return
	done
}
# drain writes to a port what the host takes out again. What was written before may still
# be in the queue of the port, as write(2) does not wait for the host (kernel:
# drivers/char/virtio_console.c, port_fops_write), and is lost with the machine. The queue
# has 128 places (QEMU: hw/char/virtio-serial-bus.c, virtio_serial_device_realize). So
# twice as many writes end when the host has all that came before them.
drain() {
	for i in $(seq 256); do
		printf '\0'
	done
}

for i in $(seq 200); do
	out=$(port out) err=$(port err) result=$(port result)
	[ -c "$out" ] && [ -c "$err" ] && [ -c "$result" ] && break
	sleep 0.05
done

# The kernel does not let containers leave the first file system as their root, see
# pivot_root(2). They can leave a mount of it.
if [ "$DISK" ]; then
	modprobe -q virtio_blk
	mkdir -p "$DISK" /newroot
	mount -t ext4 -o noatime /dev/vda "$DISK"
	# A clock that skips idle time goes fast while the machine waits for its disk. So
	# nothing waits for it later.
	find "$DISK" -type f -exec cat {} + >/dev/null
	# kubelet asks for the size of its file system, and finds no first one.
	mkdir -p /root/.cache
	mount -t tmpfs -o size=75% tmpfs /root/.cache
	mount --rbind / /newroot
	cd /newroot
	mount --move . /
	enter="chroot ."
fi

echo "vm: starts the command at $(cut -d' ' -f1 /proc/uptime) s" >/dev/console
$enter bash /vm/run >"$out" 2>"$err" </dev/null
code=$?
echo "vm: the command ended at $(cut -d' ' -f1 /proc/uptime) s with $code" >/dev/console
# A process that the command left behind may still have these ports.
drain 2>/dev/null >"$out"
drain 2>/dev/null >"$err"
{
	echo $code
	tar cf - $OUTPUTS 2>/tar.log || echo "vm: tar ended with $?: $(tail -n 3 /tar.log)" >/dev/console
	drain
} >"$result"
# Who reads the ports sees their end when the machine is gone.
echo b >/proc/sysrq-trigger
poweroff -f
