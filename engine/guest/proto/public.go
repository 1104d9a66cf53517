package proto

import (
	"encoding/json"
	"time"
)

// The public server's requests and responses, as far as they are JSON objects.

// Times that hold where a request names none; all are the public server's.
const (
	RunPythonTimeout   = 30 * time.Second
	DefaultBashTimeout = 100 * time.Second
	DefaultOpenTimeout = 1800 * time.Second
)

// RunPythonRequest asks for a Python program to be run from a file of its own.
type RunPythonRequest struct {
	Code string `json:"code"`
}

// RunPythonResponse answers it. Output is null where the program did not end by itself.
type RunPythonResponse struct {
	Status string `json:"status"`
	// Message is both outputs, or what went wrong.
	Message    string  `json:"message"`
	NeedMore   bool    `json:"need_more"`
	Output     *string `json:"output"`
	Error      string  `json:"error"`
	ReturnCode *int    `json:"return_code,omitempty"`
}

// RunBashRequest asks for a script to be run by bash, or by sh where there is none.
type RunBashRequest struct {
	Script string `json:"script"`
	// Timeout in seconds; absent is DefaultBashTimeout.
	Timeout *float64 `json:"timeout,omitempty"`
	// WorkingDir may be null.
	WorkingDir *string `json:"working_dir,omitempty"`
}

// RunBashResponse answers it. Output is both outputs, in the order of their
// writing, or what went wrong; Error is always empty. Returncode is -1 where the
// script did not end by itself.
type RunBashResponse struct {
	Status     string `json:"status"`
	Output     string `json:"output"`
	Error      string `json:"error"`
	Returncode int    `json:"returncode"`
}

// LaunchRequest asks for a program that is not waited for. Command as in ExecuteRequest.
type LaunchRequest struct {
	Command json.RawMessage `json:"command"`
	Shell   bool            `json:"shell"`
}

// OpenFileRequest asks for a file to be opened with xdg-open, or for a program of
// that name to be launched, and for a window whose title has the name in it.
type OpenFileRequest struct {
	Path string `json:"path"`
	// WindowName is looked for in place of the file's name.
	WindowName string `json:"window_name,omitempty"`
	// TimeoutSeconds is a number, or one as text; absent is DefaultOpenTimeout.
	TimeoutSeconds json.RawMessage `json:"timeout_seconds,omitempty"`
}

// WindowRequest names a window as wmctrl(1) does: the first whose title has the
// name in it, in whatever case. Strict: the whole title, in this case. ByClass:
// "INSTANCE.CLASS" in place of the title.
type WindowRequest struct {
	WindowName string `json:"window_name"`
	Strict     bool   `json:"strict"`
	ByClass    bool   `json:"by_class"`
}

// Size of a screen or window in pixels.
type Size struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// AccessibilityResponse is the desktop as AT-SPI tells it, as XML: roles are elements.
type AccessibilityResponse struct {
	AT string `json:"AT"`
}

// WallpaperRequest names the file that is to be behind all windows.
type WallpaperRequest struct {
	Path string `json:"path"`
}

// StatusResponse says that something was done.
type StatusResponse struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// TerminalResponse holds the text of an active gnome-terminal, which only AT-SPI
// tells; null where there is none.
type TerminalResponse struct {
	Output *string `json:"output"`
	Status string  `json:"status"`
}
