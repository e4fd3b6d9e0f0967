/* A unit whose address has a name that takes long to resolve: getaddrinfo is ours here. */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>

#include "base/time.h"
#include "ep/unit.h"
#include "tap.h"

static _Atomic int slow, asked; /* so many look-ups are slow yet */

static int found(const char *port, struct addrinfo **list)
{
	struct { struct addrinfo ai; struct sockaddr_in in; } *a = calloc(1, sizeof(*a));

	a->in.sin_family = AF_INET;
	a->in.sin_port = htons((uint16_t)atoi(port));
	a->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	a->ai = (struct addrinfo){ .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_addrlen = sizeof(a->in),
		.ai_addr = (struct sockaddr *)&a->in };
	*list = &a->ai;
	return 0;
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
	bool named = strcmp(host, "name") == 0;

	if (named && hints->ai_flags & AI_NUMERICHOST)
		return EAI_NONAME;
	if (named) {
		asked++;
		if (atomic_fetch_sub(&slow, 1) > 0)
			poll(NULL, 0, 1500);
	}
	return found(port ? port : "0", list);
}

void freeaddrinfo(struct addrinfo *list)
{
	free(list);
}

static int placed(void *ctx, uint64_t id, const void *plan, size_t n, const struct ranks *members, struct ds_err *err)
{
	(void)ctx, (void)id, (void)plan, (void)n, (void)members, (void)err;
	return 0;
}

/* Opens it, seconds it took in *took. */
static int open_one(int64_t timeout_ns, double *took, struct ds_err *err)
{
	static const struct unit_ops ops = { NULL, placed };
	struct unit_config c = { .addr = "tcp:name:0", .world = 1, .unit_timeout_ns = timeout_ns,
		.peer_timeout_ns = 1000000000, .ops = &ops, .bytes = { 0, 4096, 4096 } };
	int64_t began = time_mono_ns();
	struct unit *u;
	int rc = unit_open(&u, &c, err);

	*took = (double)(time_mono_ns() - began) / 1e9;
	if (!rc)
		unit_close(u);
	return rc;
}

int main(void)
{
	struct ds_err err;
	double took;
	int rc;

	slow = 1;
	rc = open_one(4000000000, &took, &err);
	tap_ok(!rc && took >= 0.4 && took < 4 && asked == 2, "a name that takes too long is looked up again: %.2f s, "
		"%d look-ups", took, asked);
	slow = 100;
	rc = open_one(800000000, &took, &err);
	tap_ok(rc == DS_UNAVAILABLE && took < 4 && strstr(err.text, "cannot find 'tcp:name:0'"), "%s (%.2f s)",
		rc ? err.text : "it opens", took);
	poll(NULL, 0, 1500); /* the threads that were left end */
	return tap_done();
}
