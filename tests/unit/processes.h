/* For tests with processes: sockets between them, time, what they hold and use. */
#ifndef DS_TESTS_PROCESSES_H
#define DS_TESTS_PROCESSES_H

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MS ((int64_t)1000000)

/* Two ends of one connection: a pair of unix sockets, or TCP over loopback.  Non-zero: errno. */
static inline int socket_pair(int fd[2], bool tcp)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t n = sizeof(a);
	int l, rc;

	if (!tcp)
		return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);
	l = socket(AF_INET, SOCK_STREAM, 0);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	rc = bind(l, (struct sockaddr *)&a, n) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &n) ||
		connect(fd[0], (struct sockaddr *)&a, n);
	fd[1] = rc ? -1 : accept(l, NULL, NULL);
	close(l);
	return rc || fd[1] < 0;
}

static inline void nap(int64_t ns)
{
	nanosleep(&(struct timespec){ ns / 1000000000, ns % 1000000000 }, NULL);
}

/* CPU time of this process. */
static inline int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How many descriptors this process has open. */
static inline size_t open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

#endif
