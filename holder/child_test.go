package holder

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A child is a daemon that does what the test tells it.
type child struct {
	plan    plan
	keeper  *Keeper
	conn    *net.UnixConn
	signals chan os.Signal
	exit    int // negative: go on
}

func daemonChild(arg string) int {
	d := &child{plan: readPlan(arg), exit: -1, signals: make(chan os.Signal, 10)}
	signal.Notify(d.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	var err error
	if d.keeper, err = Connect(os.Getenv); err != nil {
		return fail(err)
	}
	lock, err := os.OpenFile(filepath.Join(d.plan.Dir, "alive"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fail(err)
	}
	defer lock.Close()
	hello := fmt.Sprintf("alone %d", os.Getpid())
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		hello = "another daemon lives"
	}
	d.conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(d.plan.Dir, "ctl"), Net: "unixpacket"})
	if err != nil {
		return fail(err)
	}
	buf, answer := make([]byte, 4096), hello
	for {
		if _, err := d.conn.Write([]byte(answer)); err != nil {
			return fail(err)
		}
		if d.exit >= 0 {
			return d.exit
		}
		n, err := d.conn.Read(buf)
		if err != nil {
			return 98 // the test is over
		}
		result, err := d.do(strings.Split(string(buf[:n]), " "))
		if answer = "ok " + result; err != nil {
			answer = "error " + err.Error()
		}
	}
}

func (d *child) do(words []string) (string, error) {
	words = append(words, "", "")
	switch k, arg := d.keeper, words[1]; words[0] {
	case "ready":
		return "", k.Ready()
	case "stopping":
		return "", k.Stopping()
	case "beat":
		return "", k.Beat()
	case "every":
		return k.BeatEvery().String(), nil
	case "exit":
		n, err := strconv.Atoi(arg)
		d.exit = n
		return "", err
	case "put":
		return "", putContent(k, arg, words[2])
	case "open":
		return "", d.putFile(arg, words[2])
	case "drop":
		return "", k.Drop(arg)
	case "get":
		return getContent(k, arg)
	case "names":
		return strings.Join(k.Names(), " "), nil
	case "kind":
		return string(k.Kind()), nil
	case "holder":
		return strconv.Itoa(k.PID()), nil
	case "lost":
		<-k.Lost()
		return "", nil
	case "signal":
		return (<-d.signals).String(), nil
	case "pending":
		return strconv.Itoa(len(d.signals)), nil
	case "adopt":
		return "", k.Adopt([]string{"holder", "child:adopt", d.plan.json()}, os.Environ())
	case "exec":
		return "", d.execute(arg)
	case "raw":
		return "", sendMessage(k.link.sock, strings.ReplaceAll(arg, "|", "\n"), -1)
	case "flood":
		go d.flood()
		return "", nil
	case "exe":
		return os.Readlink("/proc/self/exe")
	case "inherited":
		return inheritable()
	case "flags":
		return processFlags()
	case "fds":
		entries, err := os.ReadDir("/proc/self/fd")
		return strconv.Itoa(len(entries)), err
	}
	return "", errors.New("what?")
}

// flood sends what the supervisor does not understand, as fast as it can, until the process ends.
func (d *child) flood() {
	for sendMessage(d.keeper.link.sock, "FDSTORE=1", 1) == nil {
	}
}

func putContent(k *Keeper, name, content string) error {
	fd, err := memfd(content)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return k.Put(name, fd)
}

func getContent(k *Keeper, name string) (string, error) {
	fd, ok := k.Take(name)
	if !ok {
		return "none", nil
	}
	defer closeFD(fd)
	return readFD(fd)
}

func (d *child) putFile(name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.keeper.Put(name, int(f.Fd())), f.Close())
}

func (d *child) execute(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.keeper.Exec(int(f.Fd()), d.plan.args(), os.Environ()), f.Close())
}

// inheritable counts the descriptors above 2 that a child would get.
func inheritable() (string, error) {
	n := 0
	for fd := 3; fd < 1000; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			n++
		}
	}
	return strconv.Itoa(n), nil
}

// processFlags says what a daemon has from its supervisor.
func processFlags() (string, error) {
	flusher, err := ioFlusher(true)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return "", err
	}
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "", err
	}
	stdin, err := os.Readlink("/proc/self/fd/0")
	return fmt.Sprintf("%v %s %s %v", flusher, strings.TrimSpace(string(score)), stdin, unix.Getpgrp() == os.Getpid()), err
}

// rounds is how often roundsChild dies.
const rounds = 500

// roundsChild puts the next number, and is dead when that has returned. It stops when it has seen all.
func roundsChild() int {
	k, err := Connect(os.Getenv)
	if err != nil {
		return fail(err)
	}
	n := 0
	for _, name := range k.Names() {
		if s, ok := strings.CutPrefix(name, "round"); ok {
			if n, err = strconv.Atoi(s); err != nil {
				return fail(err)
			}
		}
	}
	lives, err := getContent(k, "lives")
	if err != nil || lives != strconv.Itoa(n) && n > 0 {
		return fail("lost: lives", lives, "but round", n, err)
	}
	if n == rounds {
		return stopRounds(k)
	}
	next := strconv.Itoa(n + 1)
	err = errors.Join(k.Ready(), putContent(k, "lives", next), k.Drop("round"+strconv.Itoa(n)), putContent(k, "round"+next, ""))
	if err != nil {
		return fail(err)
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	time.Sleep(time.Hour)
	return 0
}

func stopRounds(k *Keeper) int {
	if err := k.Stopping(); err != nil {
		return fail(err)
	}
	return 42
}
