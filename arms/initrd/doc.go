// Package initrd makes the initial ramdisk that boots our own images as a
// virtual machine, and gives each machine its configuration.
//
// It exists so that a VM's slot starts from nothing but pinned bytes: kernel and
// ramdisk lie in the image and are pinned with its digest, the guest server in
// the ramdisk is the image's own, and what differs from one slot to the next is
// one small file that the arm appends.
//
// What always holds: the same modules and guest server give the same bytes; a
// module that is missing, or needs one that is missing, fails the build and not
// the boot; nothing of a machine's configuration is in the image.
//
// # In the image
//
//	/boot/vmlinuz         Kernel     the kernel
//	/boot/initramfs.img   Initramfs  gzip of a cpio archive (newc): guestd as /init, /modules/NN-NAME.ko in loading order
//	/boot/listing.gz                 every path of the image, with digests: what a guest's state is compared with
//
// An image whose recipe names no kernel has none of the three: it cannot be
// booted by the qemu arm, which refuses it. Read them from the image as it is
// attached read-only, after its digest was compared with the pin.
//
// # Booting
//
//	qemu-system-x86_64 -M q35 ... -kernel vmlinuz -initrd FILE -append "CommandLine" -no-reboot \
//	  -drive if=none,id=d0,file=OVERLAY.qcow2,format=qcow2 -device virtio-blk-pci,drive=d0 \
//	  -netdev user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:HOSTPORT-10.0.2.15:PORT -device virtio-net-pci,netdev=n0,romfile= \
//	  -serial file:CONSOLE
//
// FILE is what Append makes of /boot/initramfs.img and the machine's Config. The
// first virtio disk (/dev/vda) is the root file system, an ext4 without
// partitions, mounted read-write: its backing image stays as it is. The network
// card is eth0; a machine without addresses needs none. -no-reboot makes a panic
// of the guest end QEMU, since the command line says panic=-1.
//
// What the boot has to say goes to the serial console, guestd's own messages
// too ("guestd: slot is failed: ..."); a boot that cannot go on says why in a
// line that begins with FailurePrefix and powers the machine off. So QEMU exits
// with 0 there: a machine that ends was never well, whatever its exit status.
//
// # In the machine
//
// guestd is /init of the ramdisk. It loads the modules, mounts /dev/vda, makes
// the same mounts as a slot of the drums arm (sysfs read-only, a tmpfs on /dev
// with the same nodes, devpts, /dev/shm, proc), sets the host name, brings lo up
// and eth0 with Config.Addresses, sets the limits, makes the disk the root, lets
// the ramdisk go and runs the image's own guestd as init. So mount table,
// processes and services look as on the other arms, but for the file system of /
// (ext4 on /dev/vda, where a drums slot has an overlay) and for eth0.
//
// eth0 has IPv4 only (IPv6 is switched off on it before it comes up: no address
// that configures itself), its addresses are permanent, and it gets a default
// route only where Config.Gateway names one. There is no resolver.
//
// # Reaching the guest server
//
// The server listens on 127.0.0.1:PORT in the guest, as on every arm. In a
// machine guestd also listens on the first address of eth0, on each port of
// Config.Forward, and hands each connection on to the same port of 127.0.0.1. The
// relay closes its side once the server has closed (and resets what it had with
// the server), and lets the server go once the client has closed or shut down its
// side, so what guest.Client says of closed connections holds through it.
// Through QEMU's hostfwd, engine.Slot.Dial(PORT) is a dial of 127.0.0.1:HOSTPORT.
// QEMU accepts there at once, also while nobody listens in the guest yet: such a
// connection is closed without an answer (engine.ErrDead of the client).
//
// # Limits
//
// Config.Pids is a limit on the tasks of the guest, kernel threads excluded, set
// in a cgroup of the machine's own kernel that its first process is put into. The
// hierarchy is mounted nowhere in the guest. Memory is the machine's RAM, CPUs are
// its vCPUs; guest.Client.Observe gives all three as the guest's kernel has them.
//
// # What the guest sees of itself
//
// guest.Client.Observe asks for mounts, network, processes, locks, state and
// limits; each is known, or has a reason why it is not. The state is compared
// with /boot/listing.gz: what equals the image is no difference, as in the
// state manifests of package overlay.
//
// # The clock
//
// guest.Client.SetClock sets CLOCK_REALTIME to a given time, or from the RTC, and
// reports it before and after and the skew that it took away. Only guestd in a
// machine does so: on other arms the clock is the host's, and it refuses.
package initrd
