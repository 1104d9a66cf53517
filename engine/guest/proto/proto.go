// Package proto is the language between the engine and the server inside a
// slot: the OSWorld guest HTTP interface and two requests of our own, GET /probe and POST /check.
//
// It stands apart from package guest so that cmd/guestd links nothing of the
// engine: the program's digest, and with it every image and its pin, changes
// when the guest does, not whenever the engine does. It must stay free of
// imports beyond the schemas.
//
// # Requests
//
// GET /probe -> 200 Probe is ours; with ?system it has System too. So is POST /check
// (check.go). All others are the public server's
// (github.com/xlang-ai/OSWorld, desktop_env/server/main.py), with its parameters,
// shapes and statuses as its clients (desktop_env/controllers) rely on them.
//
//	POST /execute          ExecuteRequest -> ExecuteResponse (also as /setup/execute)
//	       200 the program ran and ended, whatever its exit status
//	       400 the request makes no sense
//	       500 it could not be started, or its time was up and its tree was ended
//	       503 the slot is failed, nothing was started
//	POST /run_python       RunPythonRequest -> RunPythonResponse; statuses as above
//	POST /run_bash_script  RunBashRequest -> RunBashResponse; statuses as above
//	POST /setup/launch     LaunchRequest -> 200 "COMMAND launched successfully"
//	POST /setup/open_file  OpenFileRequest -> 200 once its window is the active one,
//	       404 no such file or program, 500 no such window in time
//	POST /setup/activate_window, /setup/close_window   WindowRequest
//	       200 the window is the active one, or gone; 404 no such window
//	POST /file             form field file_path -> 200 the file's bytes, 404 no such file
//	POST /setup/upload     multipart fields file_path, then file_data -> 200 "File Uploaded: N bytes"
//	       optional field mode: permission bits in octal; it comes before file_data
//	POST /list_directory   {"path"} -> 200 {"directory_tree": TREE}, 400 no such directory
//	       TREE is {"type": "directory", "name", "children": [TREE or {"type": "file", "name"}]},
//	       or {"error"} for a directory that cannot be read
//	POST /desktop_path     -> 200 {"desktop_path"}, 404 there is none
//	GET  /platform         -> 200 "Linux"
//	GET  /screenshot       -> 200 image/png, the screen with its cursor
//	GET  /cursor_position  -> 200 [x, y]
//	POST /screen_size      -> 200 Size
//	POST /window_size      form field app_class_name -> 200 Size, 500 no such window
//	GET  /terminal         -> 200 TerminalResponse
//	GET  /accessibility    -> 200 AccessibilityResponse, 500 where AT-SPI does not answer
//	POST /start_recording  -> 200 once the recording has begun, 400 one is in progress
//	POST /end_recording    -> 200 video/mp4, 400 none is in progress, 404 it failed
//	POST /wallpaper        -> 200 the file behind all windows, 404 it is gone
//	POST /setup/change_wallpaper  WallpaperRequest -> 200 "Wallpaper changed successfully"
//
// Everything else is 404. An error is {"error": TEXT} or, where the response has
// a status of its own, {"status": "error", "message": TEXT}; of the public server's
// errors that are bare text, the text is the same. A request that needs the screen
// is answered 500 with such an error where there is none. As on the public server, a
// leading ~ in an argument and ~, $NAME and ${NAME} in a path stand for the user's
// home and environment.
//
// Where this differs from the public server: activate_window, close_window,
// start_recording and change_wallpaper read back what they did, and say 404 or 500
// where it says 200 all the same; a wallpaper has the type of its file. The last
// five need programs of the image: python3 with AT-SPI's bindings, ffmpeg, gsettings.
package proto

import (
	"encoding/json"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Version of the probe. A client refuses an answer of another version.
const Version = "guest/v1alpha1"

// ConfigVariable names the environment variable that holds a slot's bench.Guest
// as JSON when its first process is started. The process takes it out of its environment.
const ConfigVariable = "DRUMS_GUEST"

// Paths of the requests.
const (
	PathProbe        = "/probe"
	PathExecute      = "/execute"
	PathSetupExecute = "/setup/execute"
	PathFile         = "/file"
	PathUpload       = "/setup/upload"

	PathRunPython = "/run_python"
	PathRunBash   = "/run_bash_script"
	PathLaunch    = "/setup/launch"
	PathOpenFile  = "/setup/open_file"
	PathActivate  = "/setup/activate_window"
	PathClose     = "/setup/close_window"

	PathChangeWallpaper = "/setup/change_wallpaper"

	PathScreenshot     = "/screenshot"
	PathCursorPosition = "/cursor_position"
	PathScreenSize     = "/screen_size"
	PathWindowSize     = "/window_size"
	PathTerminal       = "/terminal"
	PathAccessibility  = "/accessibility"
	PathStartRecording = "/start_recording"
	PathEndRecording   = "/end_recording"
	PathWallpaper      = "/wallpaper"
	PathPlatform       = "/platform"
	PathDesktopPath    = "/desktop_path"
	PathListDirectory  = "/list_directory"
)

// LogDir is where guestd keeps what its services print: NAME.log each.
const LogDir = "/run/guestd"

// TickPeriod is how often the live counter advances without being asked. It is
// a declared cost: one wake-up of one thread each.
const TickPeriod = 20 * time.Millisecond

// Phase of a slot as its first process sees it.
type Phase string

// The phases. Failed is final: a service ended, or one could not be started.
const (
	PhaseStarting Phase = "starting"
	PhaseRunning  Phase = "running"
	PhaseFailed   Phase = "failed"
)

// Probe is the guest's own view of its slot.
type Probe struct {
	Version string `json:"version"`
	// Phase, and the reason where it is failed. Both empty when the probe was made outside the server.
	Phase  Phase  `json:"phase,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Live is absent when the probe was made outside the server. Each probe advances the counter.
	Live bench.LiveState `json:"live,omitzero"`
	// Mounts are raw, as observe.ParseMounts gives them; compare them after observe.Normalise.
	Mounts   []bench.Mount `json:"mounts"`
	Network  bench.Network `json:"network"`
	Hostname string        `json:"hostname"`
	// ServerSHA256 is the digest of the program that answers, read from /proc/self/exe when it started.
	ServerSHA256 bench.SHA256 `json:"server_sha256"`
	// Services in the order of the manifest.
	Services []ServiceState `json:"services,omitempty"`
	// Screen is there where the guest has a display, and the probe was made by the server.
	Screen *Screen `json:"screen,omitempty"`
	// System is there where it was asked for; see PathSystem.
	System *System `json:"system,omitempty"`
	// Pid of the answering process in its own namespace: 1 for a slot's first process.
	Pid int `json:"pid"`
	// Uptime since the server's start, in nanoseconds of CLOCK_MONOTONIC. A
	// restore does not stop that clock: it counts the time on disk, and goes back
	// where the host has started anew.
	Uptime bench.Int64 `json:"uptime"`
	// Clock is CLOCK_REALTIME in nanoseconds since the epoch, read as the last thing.
	Clock bench.Int64 `json:"clock"`
}

// ServiceState is one service of the slot. guestd never starts a service again.
type ServiceState struct {
	Name string `json:"name"`
	// Pid in the slot; 0 before it is started.
	Pid int `json:"pid"`
	// Alive: started, and not reaped yet.
	Alive bool `json:"alive"`
	// Ready: alive, and its ready path exists or it has none.
	Ready bool `json:"ready"`
	// Exit says how it ended: "exit 3", "signal 9", or why it could not be started.
	Exit string `json:"exit,omitempty"`
}

// DefaultExecuteTimeout holds where a request names none; it is the public server's.
const DefaultExecuteTimeout = 120 * time.Second

// MaxExecuteTimeout is the longest that a request may ask for.
const MaxExecuteTimeout = 24 * time.Hour

// OutputLimit is how much of each of a program's outputs guestd keeps. What goes
// beyond is read and thrown away.
const OutputLimit = 1 << 20

// ExecuteRequest asks for one program. Command is a list, or a text that is
// split like a shell would (Shell false) or given to /bin/sh -c (Shell true).
type ExecuteRequest struct {
	Command json.RawMessage `json:"command"`
	Shell   bool            `json:"shell"`
	// Timeout in seconds; absent is DefaultExecuteTimeout.
	Timeout *float64 `json:"timeout,omitempty"`
}

// ExecuteResponse answers an ExecuteRequest. The first five fields are the
// public server's.
type ExecuteResponse struct {
	Status string `json:"status"`
	// Output and Error are what the program printed, as text.
	Output string `json:"output"`
	Error  string `json:"error"`
	// Returncode is the exit status, or minus the signal's number. Absent where the program did not end by itself.
	Returncode *int `json:"returncode,omitempty"`
	// Message where Status is "error".
	Message string `json:"message,omitempty"`

	// OutputBytes and ErrorBytes are there where the text would not be exact.
	OutputBytes []byte `json:"output_bytes,omitempty"`
	ErrorBytes  []byte `json:"error_bytes,omitempty"`
	// Truncated: the program printed more than OutputLimit on one of the two.
	Truncated bool `json:"truncated,omitempty"`
	// TimedOut: the time was up, and no process of the program's tree is left.
	TimedOut bool `json:"timed_out,omitempty"`
}

// The two values of ExecuteResponse.Status.
const (
	StatusSuccess = "success"
	StatusError   = "error"
)

// ErrorResponse is what every other request answers when it fails.
type ErrorResponse struct {
	Error string `json:"error"`
}
