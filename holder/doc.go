// Package holder lets a daemon die without its mount: it keeps file descriptors by name in another process, and starts the
// daemon again.
//
// The daemon's side is Keeper. The other side is either Supervise, the loop of a small process that has the daemon as its
// child, or systemd's fd store. Both speak the same protocol; only the way differs.
//
// # Promises
//
//   - When Keeper.Put returns, the descriptor survives the daemon, whatever kills it then.
//   - There are never two daemons: the next one is started when the last thread of the one before is gone.
//   - The supervisor never waits for the daemon, and nothing the daemon says can end it.
//   - If the supervisor dies, the daemon serves on (Keeper.Lost), and can start another one (Keeper.Adopt).
//
// # Messages
//
// From the daemon to its holder, in the text of sd_notify(3): lines KEY=VALUE, at most 4096 bytes a message.
//
//	FDSTORE=1 FDNAME=name FDPOLL=0   with one descriptor: keep it; what had the name is closed
//	FDSTOREREMOVE=1 FDNAME=name      close it
//	READY=1                          the daemon serves
//	RELOADING=1                      the daemon is about to execute another binary in place; READY=1 follows
//	STOPPING=1                       the daemon ends because it was asked to: it is not started again
//	WATCHDOG=1                       the daemon is not stuck
//	BARRIER=1                        with one descriptor (systemd only): closed when all before it is done
//
// To systemd they are datagrams to NOTIFY_SOCKET. To a supervisor they go through a SOCK_SEQPACKET pair, one end of which the
// daemon inherits: nobody else can speak on it, and the death of either side is seen by the other as the end of the file.
// A message lies in the supervisor's own receive queue when the daemon's sendmsg(2) returns, and the supervisor empties that
// queue after a death, before it decides anything. That, and not an answer, is what makes Put's promise true.
// The supervisor itself sends one message in its life, and only to a daemon that it adopted: WATCHDOG_USEC=limit.
//
// # At the start
//
// The daemon gets the descriptors from 3 on, as systemd passes them (sd_listen_fds(3)):
//
//	LISTEN_FDS, LISTEN_FDNAMES   how many, and their names (":" between them); "holder" is the socket to the supervisor
//	LISTEN_PID                   whom they are for. A supervisor leaves it out: it does not know the pid before the fork. The
//	                             name "holder" says the same
//	LISTEN_FDS_AT                the descriptors' numbers (with "," between them) where they are not 3 and on: after Keeper.Exec
//	HOLDER_PID                   the supervisor
//	WATCHDOG_USEC                the time without WATCHDOG=1 after which the daemon is killed
//
// A process that shall adopt a living daemon gets the same, with the daemon's pidfd as "daemon".
package holder
