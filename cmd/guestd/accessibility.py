"""What AT-SPI tells of the desktop, as the public OSWorld server writes it.

  accessibility.py tree       the whole desktop as XML
  accessibility.py terminal   the text of the active gnome-terminal, as JSON; null where there is none

Roles are the names of elements; states, attributes, places, values and actions are
attributes in the public server's name spaces. What an application does not answer
in time is left out with its children, as there. The bounds are the public server's.
"""

import json
import sys
from xml.sax.saxutils import escape, quoteattr

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

DEPTH, WIDTH = 50, 1024
SPACES = {name: "https://accessibility.ubuntu.example.org/ns/" + path for name, path in (
    ("st", "state"), ("attr", "attributes"), ("cp", "component"), ("doc", "document"), ("docattr", "document/attributes"),
    ("txt", "text"), ("val", "value"), ("act", "action"))}


def word(text):
    """A name that XML takes."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
    return name if name[:1].isalpha() or name[:1] == "_" else "_" + name


def legal(text):
    """Text without what no XML document may hold, and without the marks of embedded objects."""
    return "".join(c for c in text if (c >= " " or c in "\t\n\r") and c not in "\ufffc\ufffd\ufffe\uffff" and not "\ud800" <= c <= "\udfff")


def states(node):
    return [s.value_nick for s in node.get_state_set().get_states()]


def attributes(node, has):
    out = {"name": node.get_name() or ""}
    for state in has:
        out["st:" + state.replace("-", "_")] = "true"
    for name, value in (node.get_attributes() or {}).items():
        if name:
            out["attr:" + word(name)] = value
    if "visible" in has and "showing" in has and node.get_component_iface():
        at = node.get_component_iface().get_extents(Atspi.CoordType.SCREEN)
        out["cp:screencoord"] = "(%d, %d)" % (at.x, at.y)
        out["cp:size"] = "(%d, %d)" % (at.width, at.height)
    if node.get_image_iface():
        out["image"] = "true"
    if node.get_selection_iface():
        out["selection"] = "true"
    value = node.get_value_iface()
    if value:
        for name, read in (("value", value.get_current_value), ("min", value.get_minimum_value),
                           ("max", value.get_maximum_value), ("step", value.get_minimum_increment)):
            out["val:" + name] = str(read())
    action = node.get_action_iface()
    if action:
        for i in range(action.get_n_actions()):
            name = word((action.get_action_name(i) or "").replace(" ", "-"))
            out["act:%s_desc" % name] = action.get_action_description(i) or ""
            out["act:%s_kb" % name] = action.get_key_binding(i) or ""
    return out


def text_of(node):
    text = node.get_text_iface()
    return legal(Atspi.Text.get_text(text, 0, Atspi.Text.get_character_count(text))) if text else ""


def write(node, out, depth=0):
    role = word((node.get_role_name() or "").strip().replace(" ", "-") or "unknown")
    spaces = "".join(" xmlns:%s=%s" % (n, quoteattr(u)) for n, u in SPACES.items()) if depth == 0 else ""
    given = attributes(node, states(node))
    body = text_of(node)
    out.append("<%s%s%s>%s" % (role, spaces, "".join(" %s=%s" % (n, quoteattr(legal(str(v)))) for n, v in given.items()), escape(body)))
    if depth < DEPTH:
        for i in range(min(node.get_child_count(), WIDTH)):
            begun = len(out)
            try:
                child = node.get_child_at_index(i)
                if child:
                    write(child, out, depth + 1)
            except GLib.Error:  # it went away, or does not answer
                del out[begun:]
    out.append("</%s>" % role)


def terminal(desktop):
    """As the public server: the focused terminal in an active window of gnome-terminal, if that is one."""
    found = []

    def walk(node, depth=0):
        if node.get_role_name() == "terminal" and "focused" in states(node):
            found.append(text_of(node).rstrip())
        elif depth < DEPTH:
            for i in range(min(node.get_child_count(), WIDTH)):
                child = node.get_child_at_index(i)
                if child:
                    walk(child, depth + 1)

    for i in range(desktop.get_child_count()):
        app = desktop.get_child_at_index(i)
        if app and app.get_name() == "gnome-terminal-server":
            for k in range(app.get_child_count()):
                frame = app.get_child_at_index(k)
                if frame and frame.get_role_name() == "frame" and "active" in states(frame):
                    walk(frame)
    return found[0] if len(found) == 1 else None


def main(what):
    if Atspi.init() not in (0, 1):  # 1: it was there before
        sys.exit("AT-SPI does not answer")
    Atspi.set_timeout(2000, 5000)
    desktop = Atspi.get_desktop(0)
    if desktop is None:
        sys.exit("AT-SPI has no desktop")
    if what == "terminal":
        print(json.dumps(terminal(desktop)))
        return
    out = []
    write(desktop, out)
    print("".join(out))


if __name__ == "__main__":
    main(sys.argv[1])
