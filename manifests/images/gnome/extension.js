// A session begins on the desktop and not in the overview, where no window shows what is in it.
const Main = imports.ui.main;

let started = 0;

function init() {}

function enable() {
    if (!Main.layoutManager._startingUp)
        return;
    const had = Main.sessionMode.hasOverview;
    Main.sessionMode.hasOverview = false;
    started = Main.layoutManager.connect('startup-complete', () => {
        Main.sessionMode.hasOverview = had;
    });
}

function disable() {
    if (started)
        Main.layoutManager.disconnect(started);
    started = 0;
}
