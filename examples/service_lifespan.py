"""A web service: one session for the application, one scope for each request.

No framework and no server: the application is plain ASGI, and `main` plays the
server, with a client that hangs up after 20 ms.
"""

import anyio
import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.pipeline import PipelineLaunch

PIPELINE = scan_pipeline(DType.F32)


async def app(scope, receive, send):  # noqa: ANN001, ANN201 - ASGI's own shape
    """The recommended pattern: the disconnect cancels the request's scope."""
    session = scope["state"]["session"]

    async def watch(request: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        request.cancel()

    async with anyio.create_task_group() as group:  # the request's scope
        group.start_soon(watch, group.cancel_scope)
        async with session.stream() as stream:  # awaited, however this is left
            sums = await scan(session, stream, repeat=scope["repeat"])
        await send({"type": "http.response.body", "body": f"{sums:.0f}".encode()})
        group.cancel_scope.cancel()


async def scan(session, stream, repeat):  # noqa: ANN001, ANN201
    ones = np.ones(1 << 20, np.float32)
    # Compiled for the first request, remembered for all others.
    registry = library_registry(session.backend.default_format)
    with await session.upload(ones, stream=stream) as values:  # freed at the end
        launch = PipelineLaunch(
            pipeline=PIPELINE,
            registry=registry,
            format=session.backend.default_format,
            operands=(values.binding(),),
            results=(values.binding(),),
            runtime_scalar_arguments=(ScalarArgument.u32(values.size),),
            stream=stream,
        )
        for _ in range(repeat):
            await session.launch_pipeline(launch)
        return (await session.download(values, stream=stream))[-1]


async def main() -> None:
    async with accy_async.lifespan()(app) as state:  # Starlette(lifespan=...) does it
        for repeat in (10_000, 1):

            async def receive(seconds=0.02 if repeat > 1 else 60):  # noqa: ANN001, ANN202
                await anyio.sleep(seconds)
                return {"type": "http.disconnect"}

            async def send(message: dict[str, object]) -> None:
                print("answer:", message["body"])

            with anyio.fail_after(60):
                await app({"state": state, "repeat": repeat}, receive, send)
            print("left of the request:", state["session"].live_objects()["buffers"])
    print("left of the service:", state["session"].live_objects())


if __name__ == "__main__":
    accy_async.run(main)
