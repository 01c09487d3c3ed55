from services.gateway.app import command_line

command_line()()
