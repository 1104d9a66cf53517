package image

import (
	"fmt"
	"os"

	"github.com/diskfs/go-diskfs/partition"

	"github.com/drumsbench/drumsbench/engine"
)

// Partition is one entry of a disk's partition table, in bytes.
type Partition struct {
	Number int   `json:"number"`
	Start  int64 `json:"start"`
	Size   int64 `json:"size"`
	// Filesystem by its magic number; empty if it is none that is known.
	Filesystem string `json:"filesystem"`
}

// partitionAt is where the root file system lies on a disk: number as in the
// manifest, 0 for the whole disk. ErrRefused if there is no such partition.
func partitionAt(disk *os.File, number int64) (offset, size int64, err error) {
	const op = "find partition"
	if number == 0 {
		if kind, err := filesystemAt(disk, 0); err != nil {
			return 0, 0, err
		} else if kind != "ext4" {
			hint := "images need an ext4 root file system"
			if parts, err := partitions(disk); err == nil && len(parts) > 0 {
				hint = fmt.Sprintf("the disk has %d partitions: give image.partition in the manifest", len(parts))
			}
			return 0, 0, refuse(op, hint, "the disk itself is no ext4 file system (%q)", kind)
		}
		return 0, 0, nil
	}
	parts, err := partitions(disk)
	if err != nil {
		return 0, 0, err
	}
	for _, p := range parts {
		if int64(p.Number) != number {
			continue
		}
		if p.Filesystem != "ext4" {
			return 0, 0, refuse(op, "drumsbench image inspect lists the partitions", "partition %d holds no ext4 file system (%q)", number, p.Filesystem)
		}
		return p.Start, p.Size, nil
	}
	return 0, 0, refuse(op, "drumsbench image inspect lists the partitions", "there is no partition %d among %d", number, len(parts))
}

// partitions reads a GPT or MBR table, its used entries only. A disk without a table has none.
func partitions(disk *os.File) ([]Partition, error) {
	table, err := partition.Read(disk, 512, 512)
	if err != nil {
		return nil, nil // the library tells no table and a damaged one apart by text only; neither has a partition
	}
	var parts []Partition
	for _, p := range table.GetPartitions() {
		if p.GetSize() <= 0 || p.GetStart() <= 0 {
			continue
		}
		kind, err := filesystemAt(disk, p.GetStart())
		if err != nil {
			return nil, err
		}
		parts = append(parts, Partition{Number: p.GetIndex(), Start: p.GetStart(), Size: p.GetSize(), Filesystem: kind})
	}
	return parts, nil
}

// filesystemAt names the file system that begins at offset by its magic number;
// "ext4" stands for ext2 and ext3 too, which the same driver mounts.
func filesystemAt(disk *os.File, offset int64) (string, error) {
	head := make([]byte, 0x10048)
	n, err := disk.ReadAt(head, offset)
	if n == 0 && err != nil {
		return "", &engine.Error{Op: "read file system", Err: err}
	}
	for _, known := range []struct {
		name, magic string
		at          int
	}{
		{"ext4", "\x53\xef", 0x438}, {"xfs", "XFSB", 0}, {"btrfs", "_BHRfS_M", 0x10040},
		{"squashfs", "hsqs", 0}, {"ntfs", "NTFS    ", 3}, {"vfat", "FAT32   ", 0x52}, {"vfat", "FAT16   ", 0x36}, {"swap", "SWAPSPACE2", 0xff6},
	} {
		if string(head[known.at:known.at+len(known.magic)]) == known.magic {
			return known.name, nil
		}
	}
	return "", nil
}
