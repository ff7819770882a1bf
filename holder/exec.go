package holder

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exec replaces this process by another binary (a descriptor open for reading) with args (its own name first) and env. The
// pid, the holder and all that is kept stay; the binary is kept as Binary from now on. The new program calls Connect.
//
// Before, the holder is told: if the new program dies before it is ready, it starts the binary of now again. Exec returns
// only with an error, and everything is as it was before, the binary with the holder, too.
//
// The kept descriptors keep their numbers (LISTEN_FDS_AT): the numbers from 3 on are in use, and as long as the exec may fail
// and other threads run, a write meant for one of them must not reach the table or the device.
func (k *Keeper) Exec(binary int, args, env []string) error {
	k.speak.Lock()
	defer k.speak.Unlock()
	k.retire(false) // the new program would not know that it is still there
	before, had := k.Take(Binary)
	if had {
		defer closeFD(before)
	}
	if err := k.put(Binary, binary); err != nil {
		return err
	}
	k.announce("RELOADING=1")
	err := k.exec(args, env)
	if had {
		if restored := k.put(Binary, before); restored != nil {
			err = fmt.Errorf("%w (and the binary of before is not kept: %w)", err, restored)
		}
	}
	k.announce("READY=1")
	return err
}

// announce is say without the lock, for what may fail: an upgrade is not worth less for a service manager that sleeps.
func (k *Keeper) announce(text string) {
	l, n, _ := k.peers()
	switch {
	case l != nil:
		k.tell(l, text, -1)
	case n != nil:
		_ = n.send(text, -1) // the next READY of the new program tells it
	}
}

func (k *Keeper) exec(args, env []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := slices.Sorted(maps.Keys(k.kept))
	at := make([]int, 0, len(names)+1)
	for _, name := range names {
		at = append(at, k.kept[name])
	}
	env = append(withoutVariables(env), "LISTEN_PID="+ownPID())
	switch {
	case k.link != nil:
		names, at = append(names, nameHolder), append(at, k.link.sock)
		env = append(env, "HOLDER_PID="+strconv.Itoa(k.link.pid))
	case k.notify != nil:
		env = append(env, "NOTIFY_SOCKET="+k.notify.path, "FDSTORE="+strconv.Itoa(k.max))
	}
	if k.limit > 0 {
		env = append(env, watchdogVar(k.limit))
	}
	env = append(env, listenEnv(names, at)...)
	return execve(k.kept[Binary], at, args, env)
}

// execve executes a descriptor with the descriptors that it shall inherit. Nothing is forked meanwhile: a child would
// inherit them, too.
func execve(binary int, inherit []int, args, env []string) error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	defer func() {
		for _, fd := range inherit {
			unix.CloseOnExec(fd)
		}
	}()
	for _, fd := range inherit {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("let descriptor %d be inherited: %w", fd, err)
		}
	}
	// Under systemd nobody has set this for us. A process that may not have it has said so at its start, or lives without.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if was, err := ioFlusher(true); err == nil && !was {
		defer func() { _, _ = ioFlusher(false) }()
	}
	if err := syscall.Exec("/proc/self/fd/"+strconv.Itoa(binary), args, env); err != nil {
		return fmt.Errorf("execute the new binary: %w", err)
	}
	return nil
}
