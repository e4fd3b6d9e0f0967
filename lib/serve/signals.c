#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/looking.h"
#include "base/time.h"
#include "serve/internal.h"

/*
 * The loop answers signals and ends a drain when it comes to that.  It does not while it is in a step, which may take
 * long, or wait for another rank of a unit.  Hence a timer, set by the handlers, that ends the program where the loop
 * has not.
 */
#define MARGIN_NS ((int64_t)3000000000)  /* for the loop to end in good order: it tells clients, we cannot */
#define AT_ONCE_NS ((int64_t)1000000000)

static int wake[2] = { -1, -1 };     /* a handler writes the signal's number, whichever thread it runs on */

static struct {
	timer_t timer;
	int64_t drain_ns;
	_Atomic int64_t first_ns;        /* when the first signal to end came, 0: none has */
	_Atomic bool again;              /* a second one has */
	_Atomic int looking;
	struct log_record slow, stopped; /* ready: a handler takes no memory */
} ending;

/* timer_settime and clock_gettime may be called by handlers. */
static void end_within(int64_t ns)
{
	struct itimerspec at = { .it_value = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 } };

	timer_settime(ending.timer, 0, &at, NULL);
}

static void on_late(int sig)
{
	(void)sig;
	looking_begin(&ending.looking);
	leftover_remove();
	log_put_record(ending.again ? &ending.stopped : &ending.slow);
	_exit(DS_TEMP);
}

/* What the loop is told; 0: nothing. */
static int on_end(int sig)
{
	int64_t now = time_mono_ns(), first = 0;

	if (atomic_compare_exchange_strong(&ending.first_ns, &first, now)) {
		end_within(ending.drain_ns + MARGIN_NS);
		return sig;
	}
	if (now - first <= TWICE_NS || atomic_exchange(&ending.again, true))
		return 0;
	end_within(AT_ONCE_NS);
	return SIGNAL_AGAIN;
}

static void on_signal(int sig)
{
	int saved = errno;
	char c = (char)(sig == SIGUSR1 ? sig : on_end(sig));
	ssize_t n = c ? write(wake[1], &c, 1) : 0;

	(void)n;
	errno = saved;
}

static void handle(int sig, void (*f)(int))
{
	struct sigaction sa = { .sa_handler = f, .sa_flags = SA_RESTART };

	sigemptyset(&sa.sa_mask);
	sigaction(sig, &sa, NULL);
}

static int make_records(struct ds_err *err)
{
	if (log_make_record(&ending.slow, "stopped: a step did not end within --drain-timeout") &&
	    log_make_record(&ending.stopped, "stopped by a second signal, in the middle of a step"))
		return 0;
	return err_nomem(err, sizeof ending, "messages");
}

static void free_records(void)
{
	log_free_record(&ending.slow);
	log_free_record(&ending.stopped);
}

static int make_timer(int64_t drain_ns, struct ds_err *err)
{
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };

	if (timer_create(CLOCK_MONOTONIC, &ev, &ending.timer))
		return err_errno(err, DS_OS, "cannot make a timer");
	ending.drain_ns = drain_ns;
	ending.first_ns = 0;
	ending.again = false;
	return 0;
}

int signals_service(int64_t drain_ns, struct ds_err *err)
{
	int rc = make_records(err);

	if (!rc)
		rc = make_timer(drain_ns, err);
	if (rc) {
		free_records();
		return rc;
	}
	if (pipe2(wake, O_NONBLOCK | O_CLOEXEC)) {
		rc = err_errno(err, DS_OS, "cannot make a pipe");
		timer_delete(ending.timer);
		free_records();
		return rc;
	}
	handle(SIGALRM, on_late);
	handle(SIGTERM, on_signal);
	handle(SIGINT, on_signal);
	handle(SIGUSR1, on_signal);
	handle(SIGHUP, SIG_IGN);
	return 0;
}

void signals_done(void)
{
	if (wake[0] < 0)
		return;
	handle(SIGTERM, SIG_IGN); /* the run is over: its exit code is what counts */
	handle(SIGINT, SIG_IGN);
	handle(SIGUSR1, SIG_IGN);
	handle(SIGALRM, SIG_IGN);
	timer_delete(ending.timer);
	handle(SIGALRM, SIG_DFL);
	looking_wait(&ending.looking); /* in another thread: for ever, it ends the program */
	free_records();
	close(wake[0]);
	close(wake[1]);
	wake[0] = wake[1] = -1;
}

bool stage_stopped(void)
{
	return ending.again;
}

int64_t signals_since(void)
{
	return ending.first_ns;
}

void signals_last(int64_t ns)
{
	if (wake[0] >= 0 && !ending.again)
		end_within(ns + MARGIN_NS);
}

int signals_fd(void)
{
	return wake[0];
}

int signals_next(void)
{
	char c;

	return wake[0] >= 0 && read(wake[0], &c, 1) == 1 ? c : 0;
}

static void notify(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un u = { .sun_family = AF_UNIX };
	size_t n = path ? strlen(path) : 0;
	int fd;

	if (n < 2 || n >= sizeof u.sun_path || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(u.sun_path, path, n);
	if (path[0] == '@')
		u.sun_path[0] = 0; /* abstract */
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&u,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		log_msg(LOG_WARN, "cannot notify '%s': %s", path, strerror(errno));
	close(fd);
}

void notify_ready(int64_t ready_fd)
{
	if (ready_fd >= 0) {
		if (write((int)ready_fd, "\n", 1) != 1)
			log_msg(LOG_WARN, "cannot write to descriptor %d (--ready-fd): %s", (int)ready_fd,
				strerror(errno));
		if (ready_fd > STDERR_FILENO)
			close((int)ready_fd);
	}
	notify("READY=1");
}

void notify_stopping(void)
{
	notify("STOPPING=1");
}
