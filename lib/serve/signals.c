#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/internal.h"

static int wake[2] = { -1, -1 };     /* a handler writes the signal's number, whichever thread it runs on */

static void on_signal(int sig)
{
	int saved = errno;
	char c = (char)sig;
	ssize_t n = write(wake[1], &c, 1);

	(void)n;
	errno = saved;
}

static void handle(int sig, void (*f)(int))
{
	struct sigaction sa = { .sa_handler = f, .sa_flags = SA_RESTART };

	sigemptyset(&sa.sa_mask);
	sigaction(sig, &sa, NULL);
}

int signals_service(struct ds_err *err)
{
	if (pipe2(wake, O_NONBLOCK | O_CLOEXEC))
		return err_errno(err, DS_OS, "cannot make a pipe");
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
	close(wake[0]);
	close(wake[1]);
	wake[0] = wake[1] = -1;
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
