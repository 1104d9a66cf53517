package proto

// Display is where the guest's X server listens. It asks for no authority.
const Display = ":0"

// Bounds on what is said of a screen. What goes beyond is unknown, never cut off in silence.
const (
	// MaxWindows is how many mapped windows a Screen has at most.
	MaxWindows = 256
	// MaxPixels is the size of the largest screen that a picture is made of.
	MaxPixels = 16 << 20
	// MaxText is how long a window's title or class is at most, in bytes; it is cut off there.
	MaxText = 512
)

// Screen is the screen as its X server describes it. Either Unknown is set, or all
// the rest is known.
type Screen struct {
	// Unknown says why nothing of the rest is known: no X server answers (yet), or not in order.
	Unknown string `json:"unknown,omitempty"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	// Depth of the root window, in bits a pixel.
	Depth int `json:"depth"`
	// Manager is the name of the window manager on the root window, or the id of
	// its window where it gives none; empty where none lives. A manager that died
	// leaves its mark on the root window, but not the window that the mark names
	// (_NET_SUPPORTING_WM_CHECK, Extended Window Manager Hints 1.5).
	Manager string `json:"manager"`
	// Work is the screen without panels, as the window manager says (_NET_WORKAREA); the whole screen where it does not.
	Work Rect `json:"work"`
	// Windows are the mapped windows: those that the window manager has
	// (_NET_CLIENT_LIST, in its order), then those children of the root that it leaves
	// alone and that have a class.
	Windows []Window `json:"windows"`
}

// Rect is a rectangle on the screen, in pixels from its upper left corner.
type Rect struct {
	X      int `json:"x"`
	Y      int `json:"y"`
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Window is one mapped window, without what its manager draws around it.
type Window struct {
	// Instance and Class are the two parts of WM_CLASS.
	Instance string `json:"instance"`
	Class    string `json:"class"`
	Title    string `json:"title"`
	// Pid is what the window says of its process (_NET_WM_PID), in the slot; 0 where it says nothing.
	Pid int `json:"pid"`
	Rect
}
