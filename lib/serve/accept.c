#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"
#include "serve/internal.h"

static void peer_name(const struct stage *st, const struct sockaddr_storage *sa, char *name, size_t cap)
{
	char host[INET6_ADDRSTRLEN];
	struct sockaddr_in in;
	struct sockaddr_in6 in6;

	if (sa->ss_family == AF_INET) {
		memcpy(&in, sa, sizeof in);
		inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
		snprintf(name, cap, "tcp:%s:%d", host, ntohs(in.sin_port));
	} else if (sa->ss_family == AF_INET6) {
		memcpy(&in6, sa, sizeof in6);
		inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
		snprintf(name, cap, "tcp:[%s]:%d", host, ntohs(in6.sin6_port));
	} else {
		snprintf(name, cap, "%.250s client %llu", st->listen_addr.text, (unsigned long long)st->accepted);
	}
}

static void take_in(struct stage *st, int fd, const struct sockaddr_storage *sa)
{
	char name[300];
	struct hello hello = st->cfg->hello;
	struct source *src;
	struct ds_err err;
	int on = 1;

	st->accepted++;
	if (sa->ss_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	peer_name(st, sa, name, sizeof name);
	src = source_new(st, fd, true, name, &err);
	if (!src) {
		log_err(&err);
		close(fd);
		return;
	}
	log_msg(LOG_DEBUG, "'%s' has connected", name);
	hello.elsewhere = src->answer != &src->own;
	sink_hello(&src->own, st, &hello);
}

/* Out of descriptors or memory: trying again at once would spin. */
static void rest(struct stage *st)
{
	if (st->accept_after == 0)
		log_msg(LOG_WARN, "cannot accept at '%s': %s", st->listen_addr.text, strerror(errno));
	st->accept_after = st->now + ACCEPT_PAUSE_NS;
}

void accept_some(struct stage *st)
{
	for (int k = 0; k < 64 && st->source_count < MAX_SOURCES; k++) {
		struct sockaddr_storage sa = { .ss_family = AF_UNSPEC };
		socklen_t n = sizeof sa;
		int fd = accept4(st->listen_fd, (struct sockaddr *)&sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				rest(st);
			return;
		}
		st->accept_after = 0;
		take_in(st, fd, &sa);
		if (!st->service) { /* one stream, then the end */
			addr_unlisten(&st->listen_addr, st->listen_fd);
			st->listen_fd = -1;
			return;
		}
	}
}
