package locks_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	oddBase    = 0x400000
	oddRseqCS  = oddBase + 0x80 + 0x68
	oddSection = oddBase + 0x80 + 0x40
	oddArea    = oddBase + 0x80 + 0x60
	oddCount   = oddBase + 0x80 + 0x80
)

// oddProgram is an ELF file that has no stack and lives in a restartable
// sequence (rseq(2)): whenever it was off the processor, the kernel sends it to
// a handler that counts and goes back in.
func oddProgram() []byte {
	code := []byte{
		0xb8, 0x4e, 0x01, 0x00, 0x00, // mov eax, 334 (rseq)
		0x48, 0x8d, 0x3d, 0x54, 0x00, 0x00, 0x00, // lea rdi, [area]
		0xbe, 0x20, 0x00, 0x00, 0x00, // mov esi, 32
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 0x53, 0x30, 0x05, 0x53, // mov r10d, 0x53053053
		0x0f, 0x05, // syscall
		0x31, 0xe4, // xor esp, esp
		0x48, 0x8d, 0x05, 0x1c, 0x00, 0x00, 0x00, // again: lea rax, [section]
		0x48, 0x89, 0x05, 0x3d, 0x00, 0x00, 0x00, // mov [area.rseq_cs], rax
		0xf3, 0x90, // inside: pause
		0xeb, 0xfc, // jmp inside
		0x53, 0x30, 0x05, 0x53, // signature before the abort handler
		0x48, 0xff, 0x05, 0x46, 0x00, 0x00, 0x00, // abort: inc qword [count]
		0xeb, 0xe1, // jmp again
		0x0f, 0x1f, 0x40, 0x00, // padding
		0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // section: version, flags
		0xab, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, // start
		0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // length
		0xb3, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, // abort handler
		0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // area: struct rseq
		0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // count of aborts
	}
	le := binary.LittleEndian
	h := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	h = le.AppendUint16(h, 2)
	h = le.AppendUint16(h, 62)
	h = le.AppendUint32(h, 1)
	for _, v := range []uint64{oddBase + 0x80, 64, 0} {
		h = le.AppendUint64(h, v)
	}
	h = le.AppendUint32(h, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		h = le.AppendUint16(h, v)
	}
	h = le.AppendUint32(h, 1)
	h = le.AppendUint32(h, 7)
	size := uint64(0x80 + len(code))
	for _, v := range []uint64{0, oddBase, oddBase, size, size, 0x1000} {
		h = le.AppendUint64(h, v)
	}
	return append(append(h, make([]byte, 0x80-len(h))...), code...)
}

// TestRepairOfAThreadWithoutAStack checks the place that is written to then, and that a restartable sequence stays one.
func TestRepairOfAThreadWithoutAStack(t *testing.T) {
	slot := slottest.Start(t)
	if err := os.WriteFile(slot.Path("/root/odd"), oddProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	inner, _ := strconv.Atoi(slot.Call("start", "/root/odd", open(slot.Agent, "/root/shm", unix.O_RDWR)))
	pids := slot.Pids()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pids[len(pids)-1]))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	read := func() []byte {
		t.Helper()
		page := make([]byte, 0x108)
		if _, err := mem.ReadAt(page, oddBase); err != nil {
			t.Fatal(err)
		}
		// The kernel writes the processor that the thread is on into cpu_id_start,
		// cpu_id, node_id and mm_cid (struct rseq) whenever it goes back to user
		// space, so they change when the repair ran on another processor.
		clear(page[oddArea-oddBase:][:8])
		clear(page[oddArea-oddBase:][20:32])
		return page
	}
	word := func(page []byte, at int) uint64 { return binary.LittleEndian.Uint64(page[at-oddBase:]) }
	deadline := time.Now().Add(20 * time.Second)
	for slot.Stop(); word(read(), oddRseqCS) != oddSection; slot.Stop() { // stopped outside the sequence, or not started yet
		if time.Now().After(deadline) {
			t.Fatalf("rseq_cs is %#x", word(read(), oddRseqCS))
		}
		slot.Continue()
		time.Sleep(5 * time.Millisecond)
	}
	before := read()
	repair(t, slot, []bench.Lock{lock(inner, "/root/shm", "POSIX", "WRITE", 0, 9, false)})
	if after := read(); !bytes.Equal(before, after) {
		t.Errorf("memory changed:\n%x\n%x", before, after)
	}
	slot.Continue()
	for word(read(), oddCount) == word(before, oddCount) {
		if time.Now().After(deadline) {
			t.Fatal("the sequence was not aborted")
		}
		time.Sleep(time.Millisecond)
	}
	if !heldFor(t, slot, "/root/shm", unix.F_RDLCK, 9) {
		t.Error("not held")
	}
}
