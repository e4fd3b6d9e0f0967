/* Redis servers of a test's own, in a directory that goes with them. */
#ifndef DS_TESTS_REDIS_SERVERS_H
#define DS_TESTS_REDIS_SERVERS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/tap.h"

struct redis_server {
	pid_t pid;
	int port, bus;
	char dir[64], addr[40]; /* redis-cli's and ours: HOST:PORT */
	const char *extra[8];   /* options, ended by NULL */
};

/* A port that nobody listened on a moment ago. */
TAP_USED static int redis_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &n))
		tap_bail("no port");
	close(fd);
	return ntohs(a.sin_port);
}

TAP_USED static bool redis_here(void)
{
	return system("command -v redis-server >/dev/null 2>&1 && command -v redis-cli >/dev/null 2>&1") == 0;
}

/* A line of shell, with %d for the port. */
TAP_USED static bool redis_shell(const struct redis_server *s, const char *what)
{
	char line[1000];
	const char *d = strstr(what, "%d");

	if (d)
		snprintf(line, sizeof line, "%.*s%d%s", (int)(d - what), what, s->port, d + 2);
	else
		snprintf(line, sizeof line, "%s", what);
	return system(line) == 0;
}

TAP_USED static bool redis_up(const struct redis_server *s)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	bool up = false;
	int fd;

	a.sin_port = htons((uint16_t)s->port);
	for (int i = 0; i < 500 && !up; i++) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		up = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
		close(fd);
		if (!up)
			nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return up;
}

/* Starts it (again) and waits until it answers. */
TAP_USED static void redis_start(struct redis_server *s)
{
	char port[16], bus[16];
	const char *argv[32] = { "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", s->dir,
		"--unixsocket", "sock", "--cluster-port", bus, "--appendonly", "no" };
	size_t n = 15;

	if (!s->port) {
		s->port = redis_port();
		s->bus = redis_port();
		snprintf(s->dir, sizeof s->dir, "/tmp/ds-redis-XXXXXX");
		if (!mkdtemp(s->dir))
			tap_bail("no directory");
	}
	snprintf(port, sizeof port, "%d", s->port);
	snprintf(bus, sizeof bus, "%d", s->bus);
	snprintf(s->addr, sizeof s->addr, "127.0.0.1:%d", s->port);
	for (size_t i = 0; s->extra[i]; i++)
		argv[n++] = s->extra[i];
	fflush(stdout);
	s->pid = fork();
	if (s->pid == 0) {
		int null = open("/dev/null", O_RDWR);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(null, 1);
		dup2(null, 2);
		execvp(argv[0], (char **)(uintptr_t)argv);
		_exit(127);
	}
	if (!redis_up(s))
		tap_bail("redis-server does not start");
}

TAP_USED static void redis_kill(struct redis_server *s)
{
	if (s->pid > 0) {
		kill(s->pid, SIGKILL);
		waitpid(s->pid, NULL, 0);
	}
	s->pid = 0;
}

TAP_USED static void redis_remove(struct redis_server *s)
{
	char line[100];

	redis_kill(s);
	snprintf(line, sizeof line, "rm -rf '%s'", s->dir);
	if (s->port && system(line) != 0)
		tap_diag("'%s' was not removed", s->dir);
}

#endif
