// Package slottest makes small real slots for tests of what looks at slots from
// the host: own pid, mount, network, ipc and uts namespaces on an overlay of the
// host's root, and in them agents that do what a test tells them to.
//
// What always holds: a slot holds nothing of the outside, not even a pipe, so
// that a fault is only there if the test planted it; commands and answers
// travel as files, which the host reaches through /proc/PID/root. Everything a
// slot is made of ends with its test.
package slottest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"
)

const (
	stageVar = "DRUMS_SLOTTEST_STAGE"
	rootVar  = "DRUMS_SLOTTEST_ROOT"
	filesVar = "DRUMS_SLOTTEST_FILES"
	bindVar  = "DRUMS_SLOTTEST_BIND"
	program  = "/drums-slottest"
	controls = "/run/control"
	// patience bounds every wait of a test for its slot.
	patience = 30 * time.Second
)

// Command is something an agent can do. It runs on a goroutine of its own, or
// on the agent's main thread if it is called with "main:" before its name. Every
// agent knows "spawn", "pid" and "registers".
type Command func(args ...string) (string, error)

func init() {
	if os.Getenv(stageVar) != "" {
		runtime.LockOSThread() // keeps the main goroutine of an agent on the main thread
	}
}

// Main runs the tests, or an agent in a slot: call it from TestMain with the
// commands that agents know. A child that an agent starts with Child sleeps or exits at once.
func Main(m *testing.M, commands map[string]Command) {
	switch stage := os.Getenv(stageVar); stage {
	case "":
		os.Exit(m.Run())
	case "sleep":
		for {
			time.Sleep(time.Hour)
		}
	case "exit":
		os.Exit(0)
	case "setup":
		fmt.Fprintln(os.Stderr, setup(os.Getenv(rootVar)))
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, agent(stage, commands))
		os.Exit(1)
	}
}

// Slot is a running slot.
type Slot struct {
	t testing.TB
	// Init is the host's pid of the slot's pid 1.
	Init int
	cmd  *exec.Cmd
	*Agent
}

// Option changes how a slot is started.
type Option func(*exec.Cmd)

// WithFile leaves an open file of the outside in the slot's first process.
func WithFile(f *os.File) Option {
	return func(c *exec.Cmd) { c.ExtraFiles = append(c.ExtraFiles, f) }
}

// WithBind binds a directory of the host over the slot's /shared.
func WithBind(dir string) Option {
	return func(c *exec.Cmd) { c.Env = append(c.Env, bindVar+"="+dir) }
}

// WithForeignSession leaves the slot's pid 1 in the session of the test, case 8.
func WithForeignSession() Option { return func(c *exec.Cmd) { c.SysProcAttr.Setsid = false } }

// Start makes a slot whose pid 1 is the agent "init". It needs root and fails the test without.
func Start(t testing.TB, options ...Option) *Slot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("slots need root")
	}
	dir, err := os.MkdirTemp("", "drums-slottest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stageVar+"=setup", rootVar+"="+dir)
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Setsid:     true,
	}
	for _, o := range options {
		o(cmd)
	}
	cmd.Env = append(cmd.Env, filesVar+"="+strconv.Itoa(len(cmd.ExtraFiles)))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &Slot{t: t, Init: cmd.Process.Pid, cmd: cmd}
	s.Agent = &Agent{slot: s, name: "init"}
	t.Cleanup(s.Kill)
	deadline := time.Now().Add(patience)
	for {
		if _, err := os.Stat(s.Path(controls + "/init/up")); err == nil {
			return s
		}
		if time.Now().After(deadline) || !s.lives() {
			text, _ := os.ReadFile(stderr.Name())
			t.Fatalf("slot did not start: %s", text)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (s *Slot) lives() bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.Init) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// Kill ends the slot; its test does so in any case.
func (s *Slot) Kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// Path is where the host reaches a path of the slot.
func (s *Slot) Path(p string) string { return filepath.Join("/proc", strconv.Itoa(s.Init), "root", p) }

// Pids lists the host's pids of the slot's tree, pid 1 first.
func (s *Slot) Pids() []int {
	s.t.Helper()
	var walk func(pid int) []int
	walk = func(pid int) []int {
		out := []int{pid}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, t := range tasks {
			text, _ := os.ReadFile(t)
			for _, f := range strings.Fields(string(text)) {
				n, _ := strconv.Atoi(f)
				out = append(out, walk(n)...)
			}
		}
		return out
	}
	return walk(s.Init)
}

// Stop sends SIGSTOP to every process, as criu --leave-stopped leaves a tree, and waits until every thread is stopped.
func (s *Slot) Stop() {
	s.t.Helper()
	for _, pid := range s.Pids() {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			s.t.Fatal(err)
		}
	}
	deadline := time.Now().Add(patience)
	for {
		states := s.States()
		if strings.Trim(states, "TZ") == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("tree did not stop: %s", states)
		}
		time.Sleep(time.Millisecond)
	}
}

// States is the letter of every thread's state.
func (s *Slot) States() string {
	var b strings.Builder
	for _, pid := range s.Pids() {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			if i := strings.LastIndex(string(text), ") "); i >= 0 {
				b.WriteByte(text[i+2])
			}
		}
	}
	return b.String()
}

// Continue lets every process run.
func (s *Slot) Continue() {
	s.t.Helper()
	for _, pid := range s.Pids() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Child starts a child of an agent's process: "sleep" or "exit". Nobody waits for it.
func Child(does string, attr *syscall.SysProcAttr, files ...*os.File) (pid int, err error) {
	p, err := os.StartProcess(program, []string{"agent", does}, &os.ProcAttr{
		Dir: "/", Env: stage(does), Sys: attr,
		Files: append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, files...),
	})
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

// stage is the environment of a child: of two equal names in it the first would win.
func stage(name string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, stageVar+"=") })
	return append(env, stageVar+"="+name)
}

// Agent is a process in a slot that takes commands.
type Agent struct {
	slot *Slot
	name string
	seq  int
}

// Spawn starts another agent as a child of this one.
func (a *Agent) Spawn(name string) *Agent {
	a.slot.t.Helper()
	a.Call("spawn", name)
	return &Agent{slot: a.slot, name: name}
}

// Pid is the agent's pid inside the slot.
func (a *Agent) Pid() int {
	a.slot.t.Helper()
	n, err := strconv.Atoi(a.Call("pid"))
	if err != nil {
		a.slot.t.Fatal(err)
	}
	return n
}

// Call runs a command and returns its answer; an error fails the test.
func (a *Agent) Call(command string, args ...string) string {
	a.slot.t.Helper()
	return a.Go(command, args...)()
}

// Go starts a command and returns the function that waits for its answer.
func (a *Agent) Go(command string, args ...string) (wait func() string) {
	t := a.slot.t
	t.Helper()
	a.seq++
	dir := a.slot.Path(controls + "/" + a.name)
	base := filepath.Join(dir, strconv.Itoa(a.seq))
	text, err := json.Marshal(append([]string{command}, args...))
	if err == nil {
		err = put(base+".request", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			text, err := os.ReadFile(base + ".answer")
			if err == nil {
				var answer answer
				if err := json.Unmarshal(text, &answer); err != nil {
					t.Fatal(err)
				}
				if answer.Error != "" {
					t.Fatalf("agent %s: %s %q: %s", a.name, command, args, answer.Error)
				}
				return answer.Text
			}
			if time.Now().After(deadline) || !a.slot.lives() {
				t.Fatalf("agent %s: %s %q: no answer", a.name, command, args)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}

type answer struct{ Text, Error string }

func put(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// setup turns this process into a slot's pid 1; it returns only on failure.
func setup(dir string) error {
	upper, merged := filepath.Join(dir, "rw"), filepath.Join(dir, "root")
	steps := []struct {
		what string
		do   func() error
	}{
		{"private mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"directories", func() error { return errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(merged, 0o755)) }},
		{"upper", func() error { return unix.Mount("tmpfs", upper, "tmpfs", 0, "mode=755") }},
		{"upper directories", func() error {
			return errors.Join(os.Mkdir(upper+"/upper", 0o755), os.Mkdir(upper+"/work", 0o755), copyProgram(upper+"/upper"+program))
		}},
		{"overlay", func() error {
			return unix.Mount("overlay", merged, "overlay", 0, "lowerdir=/,upperdir="+upper+"/upper,workdir="+upper+"/work")
		}},
		{"proc", func() error { return unix.Mount("proc", merged+"/proc", "proc", 0, "") }},
		{"dev", func() error { return unix.Mount("tmpfs", merged+"/dev", "tmpfs", 0, "mode=755") }},
		{"devices", func() error {
			return errors.Join(
				unix.Mknod(merged+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
				unix.Mknod(merged+"/dev/urandom", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 9))),
				os.Mkdir(merged+"/dev/pts", 0o755),
				os.Symlink("pts/ptmx", merged+"/dev/ptmx"),
			)
		}},
		{"pts", func() error {
			return unix.Mount("devpts", merged+"/dev/pts", "devpts", 0, "newinstance,ptmxmode=666")
		}},
		{"run", func() error { return unix.Mount("tmpfs", merged+"/run", "tmpfs", 0, "mode=755") }},
		{"bind", func() error {
			dir := os.Getenv(bindVar)
			if dir == "" {
				return nil
			}
			return errors.Join(os.Mkdir(merged+"/shared", 0o755), unix.Mount(dir, merged+"/shared", "", unix.MS_BIND, ""))
		}},
		{"pivot", func() error { return errors.Join(unix.Chdir(merged), unix.PivotRoot(".", ".")) }},
		{"old root", func() error { return errors.Join(unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")) }},
		{"control", func() error { return os.MkdirAll(controls+"/init", 0o700) }},
		{"lo", func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		}},
		{"stdio", func() error {
			null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			planted, err := strconv.Atoi(os.Getenv(filesVar))
			if err != nil {
				return err
			}
			// Whoever started the tests may have left descriptors open, too.
			return errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(null, 1, 0), unix.Dup3(null, 2, 0),
				unix.CloseRange(uint(3+planted), ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC))
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("slottest: %s: %w", s.what, err)
		}
	}
	return unix.Exec(program, []string{"agent", "init"}, []string{stageVar + "=init", "PATH=/usr/sbin:/usr/bin", "HOME=/root", "GODEBUG=multipathtcp=0"})
}

func copyProgram(to string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// agent serves requests for ever.
func agent(name string, commands map[string]Command) error {
	dir := filepath.Join(controls, name)
	if name == "init" {
		go reap()
	}
	if err := put(dir+"/up", nil); err != nil {
		return err
	}
	main := make(chan func())
	failed := make(chan error, 1)
	go func() { failed <- serve(dir, commands, main) }()
	for {
		select {
		case fn := <-main:
			fn()
		case err := <-failed:
			return err
		}
	}
}

// serve takes requests and runs them, those for the main thread by handing them over.
func serve(dir string, commands map[string]Command, main chan<- func()) error {
	for seq := 1; ; seq++ {
		base := filepath.Join(dir, strconv.Itoa(seq))
		var text []byte
		for {
			var err error
			if text, err = os.ReadFile(base + ".request"); err == nil {
				break
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		var request []string
		if err := json.Unmarshal(text, &request); err != nil {
			return err
		}
		run := func() {
			a := do(request[0], request[1:], commands)
			reply, _ := json.Marshal(a)
			put(base+".answer", reply)
		}
		var onMain bool
		if request[0], onMain = strings.CutPrefix(request[0], "main:"); onMain {
			main <- run
		} else {
			go run()
		}
	}
}

func do(command string, args []string, commands map[string]Command) (a answer) {
	var err error
	switch c, ok := commands[command]; {
	case command == "spawn":
		err = spawn(args[0])
	case command == "pid":
		a.Text = strconv.Itoa(os.Getpid())
	case command == "registers":
		a.Text, err = registers()
	case ok:
		a.Text, err = c(args...)
	default:
		err = errors.New("no such command")
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// registers keeps the processor's registers busy on the calling thread until
// the file /run/enough is there, and answers with the number of rounds; a value
// that changed is an error.
func registers() (string, error) {
	x := 1.0
	for round := uint64(1); ; round++ {
		if spin(20000, round*0x9e3779b97f4a7c15) != 0 {
			return "", fmt.Errorf("round %d: a register or the red zone changed", round)
		}
		// Floating point in the compiler's own code, against the closed form.
		sum := 0.0
		for i := 1; i <= 1000; i++ {
			sum += float64(i) * x
		}
		if sum != 500500 {
			return "", fmt.Errorf("round %d: floating point: %v", round, sum)
		}
		if _, err := os.Stat("/run/enough"); err == nil {
			return strconv.FormatUint(round, 10), nil
		}
	}
}

func spawn(name string) error {
	dir := filepath.Join(controls, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	attr := &os.ProcAttr{
		Dir: "/", Env: stage(name),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if _, err := os.StartProcess(program, []string{"agent", name}, attr); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if _, err := os.Stat(dir + "/up"); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// reap takes zombies that were orphaned to pid 1; commands wait for their own children only by files.
func reap() {
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(-1, &ws, 0, nil); err == unix.ECHILD {
			time.Sleep(20 * time.Millisecond)
		}
	}
}
