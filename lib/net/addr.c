#include "net/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/time.h"
#include "net/resolve.h"

enum { BACKLOG = 1024, FIRST_INHERITED = 3, PIPE_BYTES = 1 << 20 };
#define TELL_NS ((int64_t)1000000000) /* of waiting, before it is said */

static int inherited_fd = -1; /* taken from LISTEN_FDS: its socket file is not ours to remove */

/* ---- parsing ---- */

static int parse_unix(const char *path, struct addr *a, struct ds_err *err)
{
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof a->path)
		return err_set(err, DS_USAGE, "the path in address '%s' is empty or longer than %zu bytes", a->text,
			sizeof a->path - 1);
	memcpy(a->path, path, n + 1);
	a->kind = ADDR_UNIX;
	return 0;
}

/* HOST:PORT, [V6]:PORT */
static int parse_tcp(const char *s, struct addr *a, struct ds_err *err)
{
	const char *colon = strrchr(s, ':');
	size_t n = colon ? (size_t)(colon - s) : 0;
	int64_t port;

	a->kind = ADDR_TCP;
	if (n >= 2 && s[0] == '[' && s[n - 1] == ']') {
		s++;
		n -= 2;
	} else if (n && memchr(s, ':', n)) {
		n = 0; /* a bare v6 address: where does the port begin? */
	}
	if (n == 0 || n >= sizeof a->host || parse_int(colon + 1, 0, 65535, &port))
		return err_set(err, DS_USAGE, "bad address '%s': tcp:HOST:PORT or tcp:[V6]:PORT", a->text);
	memcpy(a->host, s, n);
	a->host[n] = 0;
	snprintf(a->port, sizeof a->port, "%d", (int)port);
	return 0;
}

int addr_parse(const char *text, struct addr *a, struct ds_err *err)
{
	int64_t fd;

	memset(a, 0, sizeof *a);
	a->fd = -1;
	if (strlen(text) >= sizeof a->text)
		return err_set(err, DS_USAGE, "address '%.40s...' is too long", text);
	memcpy(a->text, text, strlen(text) + 1);
	if (strcmp(text, "-") == 0)
		return a->kind = ADDR_STDIO, 0;
	if (strncmp(text, "unix:", 5) == 0)
		return parse_unix(text + 5, a, err);
	if (strncmp(text, "tcp:", 4) == 0)
		return parse_tcp(text + 4, a, err);
	if (strncmp(text, "fd:", 3) == 0 && parse_int(text + 3, 0, INT_MAX, &fd) == 0) {
		a->kind = ADDR_FD;
		a->fd = (int)fd;
		return 0;
	}
	return err_set(err, DS_USAGE, "bad address '%s': unix:PATH, tcp:HOST:PORT or fd:N", text);
}

/* ---- small things ---- */

int fd_nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? -1 : fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void fd_grow_pipe(int fd)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && fcntl(fd, F_GETPIPE_SZ) < PIPE_BYTES)
		fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES); /* refused where the user's share is used up: slower, not wrong */
}

bool fd_nonblock_apart(int fd)
{
	struct stat st;
	char path[40];
	int own;

	if (fstat(fd, &st) || (!S_ISFIFO(st.st_mode) && !isatty(fd)))
		return false;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (own < 0)
		return false;
	dup3(own, fd, fd > STDERR_FILENO ? O_CLOEXEC : 0);
	close(own);
	return true;
}

static struct sockaddr_un unix_name(const struct addr *a)
{
	struct sockaddr_un u = { .sun_family = AF_UNIX };

	memcpy(u.sun_path, a->path, sizeof u.sun_path);
	return u;
}

static int resolve(const struct addr *a, bool passive, int64_t until, struct addrinfo **list, struct ds_err *err)
{
	int rc = resolve_until(a->host, a->port, passive, until, list);

	if (rc == 0)
		return 0;
	errno = rc == EAI_AGAIN ? EAGAIN : EINVAL;
	if (rc == EAI_AGAIN)
		return err_set(err, DS_UNAVAILABLE, "cannot find '%s': %s", a->text, gai_strerror(rc));
	return err_set(err, DS_CONFIG, "cannot find '%s': %s", a->text, gai_strerror(rc));
}

static bool loopback(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET) {
		struct sockaddr_in in;

		memcpy(&in, sa, sizeof in);
		return ntohl(in.sin_addr.s_addr) >> 24 == 127;
	}
	if (sa->sa_family == AF_INET6) {
		struct sockaddr_in6 in;

		memcpy(&in, sa, sizeof in);
		return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
	}
	return false;
}

/* ---- listening ---- */

static int take(const struct addr *a, int fd, int *out, struct ds_err *err)
{
	int on = 0;
	socklen_t n = sizeof on;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) || !on)
		return err_set(err, DS_CONFIG, "descriptor %d for '%s' is no listening socket", fd, a->text);
	if (fd_nonblock(fd, true) || fcntl(fd, F_SETFD, FD_CLOEXEC))
		return err_errno(err, DS_OS, "cannot use descriptor %d", fd);
	*out = fd;
	return 0;
}

/* A supervisor's socket (LISTEN_PID, LISTEN_FDS), once. */
static bool inherited(int *fd)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	int64_t v;

	if (!pid || !fds || parse_int(pid, 1, INT_MAX, &v) || v != getpid() || parse_int(fds, 1, 1000, &v))
		return false;
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	*fd = inherited_fd = FIRST_INHERITED;
	return true;
}

/* A socket file that nobody answers at is removed; the directory is locked, so that two that start together do not
 * remove each other's. */
static int clear_stale(const struct addr *a, const struct sockaddr_un *u, bool over, struct ds_err *err)
{
	struct stat st;
	int fd, rc, why;

	if (lstat(a->path, &st))
		return 0;
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, DS_CONFIG, "cannot listen on '%s': the path exists and is no socket", a->text);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_errno(err, DS_OS, "cannot make a socket");
	rc = connect(fd, (const struct sockaddr *)u, sizeof *u);
	why = errno;
	close(fd);
	if (!over && (rc == 0 || why == EAGAIN)) {
		errno = EADDRINUSE;
		return err_set(err, DS_CONFIG, "cannot listen on '%s': another process serves there", a->text);
	}
	if ((over || why == ECONNREFUSED) && unlink(a->path) && errno != ENOENT)
		return err_errno(err, DS_CONFIG, "cannot remove the stale socket '%s'", a->path);
	return 0;
}

static int lock_directory(const char *path)
{
	char dir[128];
	char *slash;
	int fd;

	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	if (!slash)
		snprintf(dir, sizeof dir, ".");
	else
		slash[slash == dir] = 0;
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

static int listen_unix(const struct addr *a, bool over, int *out, struct ds_err *err)
{
	struct sockaddr_un u = unix_name(a);
	int lock = lock_directory(a->path), fd = -1, rc, why;

	rc = clear_stale(a, &u, over, err);
	if (rc)
		goto out;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		rc = err_errno(err, DS_OS, "cannot make a socket");
	else if (bind(fd, (const struct sockaddr *)&u, sizeof u) || listen(fd, BACKLOG))
		rc = errno == ENOENT ? err_set(err, DS_CONFIG,
			"cannot listen on '%s': the socket's directory is not there; make that first", a->text) :
			err_errno(err, DS_CONFIG, "cannot listen on '%s'", a->text);
out:
	why = errno;
	if (lock >= 0)
		close(lock);
	if (rc && fd >= 0)
		close(fd);
	else if (!rc)
		*out = fd;
	errno = why;
	return rc;
}

static int listen_tcp(const struct addr *a, bool anywhere, int64_t until, int *out, struct ds_err *err)
{
	struct addrinfo *list, *ai;
	int fd = -1, on = 1, rc = resolve(a, true, until, &list, err), why;

	if (rc)
		return rc;
	for (ai = list; ai && !anywhere; ai = ai->ai_next)
		if (!loopback(ai->ai_addr)) {
			freeaddrinfo(list);
			errno = EACCES;
			return err_set(err, DS_CONFIG,
				"'%s' is reachable from other machines, without TLS: say --insecure if that is meant",
				a->text);
		}
	ai = list;
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		rc = err_errno(err, DS_OS, "cannot make a socket");
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, BACKLOG)) {
			rc = err_errno(err, DS_CONFIG, "cannot listen on '%s'", a->text);
			why = errno;
			close(fd);
			errno = why;
		}
	}
	why = errno;
	freeaddrinfo(list);
	errno = why;
	if (!rc)
		*out = fd;
	return rc;
}

int addr_bind(const struct addr *a, bool anywhere, bool over, int64_t until, int *fd, struct ds_err *err)
{
	*fd = -1;
	if (a->kind == ADDR_UNIX)
		return listen_unix(a, over, fd, err);
	if (a->kind == ADDR_TCP)
		return listen_tcp(a, anywhere, until, fd, err);
	errno = EINVAL;
	return err_set(err, DS_USAGE, "cannot listen on '%s': unix:PATH or tcp:HOST:PORT", a->text);
}

int addr_listen(const struct addr *a, bool anywhere, int *fd, struct ds_err *err)
{
	int given;

	*fd = -1;
	if (a->kind == ADDR_STDIO)
		return err_set(err, DS_USAGE, "cannot listen on '-': unix:PATH, tcp:HOST:PORT or fd:N");
	if (a->kind == ADDR_FD)
		return take(a, a->fd, fd, err);
	if (inherited(&given))
		return take(a, given, fd, err);
	return a->kind == ADDR_UNIX ? listen_unix(a, false, fd, err) : listen_tcp(a, anywhere, 0, fd, err);
}

void addr_local(int fd, char *text, size_t cap)
{
	struct sockaddr_storage sa;
	socklen_t n = sizeof sa;
	char host[NI_MAXHOST], port[NI_MAXSERV];

	*text = 0;
	if (getsockname(fd, (struct sockaddr *)&sa, &n) || sa.ss_family == AF_UNIX ||
		getnameinfo((struct sockaddr *)&sa, n, host, sizeof host, port, sizeof port,
			NI_NUMERICHOST | NI_NUMERICSERV))
		return;
	snprintf(text, cap, sa.ss_family == AF_INET6 ? "tcp:[%s]:%s" : "tcp:%s:%s", host, port);
}

void addr_unlisten(const struct addr *a, int fd)
{
	if (fd < 0)
		return;
	if (a->kind == ADDR_UNIX && fd != inherited_fd)
		unlink(a->path);
	close(fd);
}

/* ---- connecting ---- */

/* One attempt within the time left; errno says why it failed. */
static int try_connect(int family, const struct sockaddr *sa, socklen_t n, int64_t until)
{
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0, on = 1;
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof why;
	int64_t left;

	if (fd < 0)
		return -1;
	if (connect(fd, sa, n)) {
		why = errno;
		left = (until - time_mono_ns()) / 1000000;
		if (why == EINPROGRESS) {
			if (poll(&p, 1, left < 0 ? 0 : left > 60000 ? 60000 : (int)left) != 1)
				why = ETIMEDOUT;
			else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len))
				why = errno;
		}
	}
	if (why) {
		close(fd);
		errno = why;
		return -1;
	}
	if (family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return fd;
}

static int try_all(const struct addr *a, const struct addrinfo *list, int64_t until)
{
	struct sockaddr_un u;
	int fd = -1;

	if (a->kind == ADDR_UNIX) {
		u = unix_name(a);
		return try_connect(AF_UNIX, (const struct sockaddr *)&u, sizeof u, until);
	}
	for (; list && fd < 0; list = list->ai_next)
		fd = try_connect(list->ai_family, list->ai_addr, list->ai_addrlen, until);
	return fd;
}

int addr_start(const struct addr *a, int *fd, struct ds_err *err)
{
	return addr_start_until(a, 0, fd, err);
}

int addr_start_until(const struct addr *a, int64_t until, int *fd, struct ds_err *err)
{
	struct sockaddr_un u = unix_name(a);
	struct addrinfo *list = NULL;
	int rc = a->kind == ADDR_TCP ? resolve(a, false, until, &list, err) : 0, on = 1, why;

	*fd = -1;
	if (rc)
		return rc;
	*fd = socket(list ? list->ai_family : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd >= 0 && list)
		setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (*fd < 0 || ((list ? connect(*fd, list->ai_addr, list->ai_addrlen) :
		connect(*fd, (const struct sockaddr *)&u, sizeof u)) && errno != EINPROGRESS))
		rc = err_errno(err, DS_UNAVAILABLE, "cannot connect to '%s'", a->text);
	why = errno;
	if (list)
		freeaddrinfo(list);
	if (rc && *fd >= 0) {
		close(*fd);
		*fd = -1;
	}
	errno = why;
	return rc;
}

/* Again and again; errno says why it gave up. */
static int keep_trying(const struct addr *a, const struct addrinfo *list, int64_t timeout_ns,
	void (*tell)(const struct addr *a))
{
	int64_t now = time_mono_ns(), until = now + timeout_ns, told = now + TELL_NS, pause = 5000000;
	int fd;

	for (;;) {
		/* What takes longer to connect than it takes to be told is begun again once. */
		fd = try_all(a, list, tell && told < until ? told : until);
		now = time_mono_ns();
		if (fd >= 0 || (errno == ETIMEDOUT ? !tell || now >= until : errno != ECONNREFUSED &&
			errno != ENOENT && errno != EAGAIN && errno != EINTR) || now + pause > until)
			return fd;
		if (tell && now >= told) {
			tell(a);
			tell = NULL;
		}
		nanosleep(&(struct timespec){ .tv_nsec = pause }, NULL);
		pause = pause < 100000000 ? 2 * pause : 200000000;
	}
}

int addr_connect_told(const struct addr *a, int64_t timeout_ns, void (*tell)(const struct addr *a), int *fd,
	struct ds_err *err)
{
	struct addrinfo *list = NULL;
	int rc = 0;

	*fd = -1;
	if (a->kind == ADDR_STDIO)
		return err_set(err, DS_USAGE, "cannot connect to '-': unix:PATH, tcp:HOST:PORT or fd:N");
	if (a->kind == ADDR_FD) {
		if (fd_nonblock(a->fd, true) || fcntl(a->fd, F_SETFD, FD_CLOEXEC))
			return err_errno(err, DS_CONFIG, "cannot use descriptor %d", a->fd);
		*fd = a->fd;
		return 0;
	}
	if (a->kind == ADDR_TCP)
		rc = resolve(a, false, time_mono_ns() + timeout_ns, &list, err);
	if (!rc)
		*fd = keep_trying(a, list, timeout_ns, tell);
	if (!rc && *fd < 0)
		rc = err_errno(err, DS_UNAVAILABLE, "cannot connect to '%s'", a->text);
	if (list)
		freeaddrinfo(list);
	return rc;
}

int addr_connect(const struct addr *a, int64_t timeout_ns, int *fd, struct ds_err *err)
{
	return addr_connect_told(a, timeout_ns, NULL, fd, err);
}
